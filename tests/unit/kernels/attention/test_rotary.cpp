// ranks: 1
#include "nanotron/kernels/attention/rotary.hpp"
#include "support/reference/rotary.hpp"
#include "unit/kernels/kernel_test.hpp"

namespace nanotron::test {
namespace {

constexpr double theta = 10000.0;

template <class T>
class Rotary : public KernelTest<T> {
 protected:
  using M = master_t<T>;

  void check(const kernels::RotaryScaling& scaling, index_t width, const std::vector<double>& frequencies) {
    const index_t tokens = 9, heads = 3, leading = 3 * width + 11, positions = 600;
    Array<M> cosine(positions * width / 2), sine(positions * width / 2);
    kernels::rotary_tables<M>(this->device_, theta, cosine.matrix(positions, width / 2),
                              sine.matrix(positions, width / 2), scaling);
    Array<std::int32_t> at(tokens);
    for (index_t t = 0; t < tokens; ++t) at.host[t] = static_cast<std::int32_t>(t * 74);
    at.push();
    auto x = Array<T>::random(tokens * leading, 1);
    const auto start = x.host;
    const MatrixRef<T> columns{x.data() + 5, tokens, heads * width, leading};
    kernels::rotary_forward<T>(this->device_, columns, at.read(), cosine.read(positions, width / 2),
                               sine.read(positions, width / 2));
    this->device_.fence();
    x.pull();
    std::vector<double> expected(start.begin(), start.end());
    kernels::reference::rotary({expected.data() + 5, tokens, heads * width, leading}, frequencies, at.host.data(), 1.0,
                               scaling.magnitude());
    // The tables are rounded once to M, two products and a sum follow, then one rounding to T.
    const double tolerance = 4 * unit_roundoff<M>() + unit_roundoff<T>();
    expect_close(x.host, expected, tolerance + 1e-13);  // 1e-13: cos of an angle of several hundred
    kernels::rotary_backward<T>(this->device_, columns, at.read(), cosine.read(positions, width / 2),
                                sine.read(positions, width / 2));
    this->device_.fence();
    x.pull();
    std::vector<double> back(start.begin(), start.end());  // the transpose turns back, and multiplies once more
    for (index_t t = 0; t < tokens; ++t) {
      for (index_t c = 0; c < heads * width; ++c) {
        back[static_cast<std::size_t>(t * leading + 5 + c)] *= scaling.magnitude() * scaling.magnitude();
      }
    }
    expect_close(x.host, back, 4 * tolerance);
  }
};
TYPED_TEST_SUITE(Rotary, ScalarTypes);

TYPED_TEST(Rotary, FollowsTheReferenceAndTurnsBack) {
  this->check({}, 20, kernels::reference::rotary_frequencies(theta, 20));
}

// Heads in the first columns only, and a bias on all of them.
TYPED_TEST(Rotary, BiasAndRotationInOnePass) {
  using T = TypeParam;
  using M = master_t<T>;
  const index_t tokens = 7, width = 12, rotated = 3 * width, columns = rotated + 17, leading = columns + 5;
  Array<M> cosine(tokens * width / 2), sine(tokens * width / 2);
  kernels::rotary_tables<M>(this->device_, theta, cosine.matrix(tokens, width / 2), sine.matrix(tokens, width / 2));
  Array<std::int32_t> at(tokens);
  for (index_t t = 0; t < tokens; ++t) at.host[t] = static_cast<std::int32_t>(tokens - 1 - t);
  at.push();
  auto x = Array<T>::random(tokens * leading, 2);
  const auto bias = Array<M>::random(columns, 3);
  std::vector<double> expected(x.host.begin(), x.host.end());
  for (index_t t = 0; t < tokens; ++t) {
    for (index_t c = 0; c < columns; ++c) expected[static_cast<std::size_t>(t * leading + c)] += bias.host[c];
  }
  kernels::reference::rotary({expected.data(), tokens, rotated, leading},
                             kernels::reference::rotary_frequencies(theta, width), at.host.data(), 1.0);
  kernels::bias_rotary_forward<T>(this->device_, {x.matrix(tokens, leading).data(), tokens, columns, leading}, rotated,
                                  bias.read(), at.read(), cosine.read(tokens, width / 2), sine.read(tokens, width / 2));
  this->device_.fence();
  x.pull();
  expect_close(x.host, expected, 5 * unit_roundoff<M>() + unit_roundoff<T>() + 1e-15);
}

// Pairs of all three kinds: long waves, short ones and those in between.
TYPED_TEST(Rotary, Llama3Scaling) {
  const kernels::RotaryScaling::Llama3 scaling{.factor = 8.0, .original_length = 64.0};
  const auto f = kernels::reference::llama3_frequencies(theta, 32, scaling),
             plain = kernels::reference::rotary_frequencies(theta, 32);
  EXPECT_EQ(f.front(), plain.front());
  EXPECT_DOUBLE_EQ(f.back(), plain.back() / 8.0);
  index_t between = 0;
  for (std::size_t i = 0; i < f.size(); ++i) between += f[i] < 0.99 * plain[i] && f[i] > 1.01 * plain[i] / 8.0;
  EXPECT_GE(between, 1);
  this->check(kernels::RotaryScaling(scaling), 32, f);
}

TYPED_TEST(Rotary, YarnScaling) {
  const kernels::RotaryScaling::Yarn scaling{.factor = 4.0, .beta_fast = 8.0, .original_length = 256.0};
  const auto f = kernels::reference::yarn_frequencies(theta, 32, scaling);
  EXPECT_EQ(f.front(), 1.0);
  EXPECT_DOUBLE_EQ(f.back(), kernels::reference::rotary_frequencies(theta, 32).back() / 4.0);
  const kernels::RotaryScaling made(scaling, theta, 32);
  EXPECT_DOUBLE_EQ(made.magnitude(), 0.1 * std::log(4.0) + 1.0);
  this->check(made, 32, f);
  EXPECT_EQ(kernels::RotaryScaling({.factor = 4.0, .attention_factor = 1.5}, theta, 32).magnitude(), 1.5);
}

}  // namespace
}  // namespace nanotron::test
