// ranks: 1
#include "nanotron/kernels/attention/rotary.hpp"

#include <numbers>

#include "support/reference/rotary.hpp"
#include "unit/kernels/kernel_test.hpp"

namespace nanotron::test {
namespace {

constexpr double theta = 10000.0;

template <class T>
class Rotary : public KernelTest<T> {
 protected:
  using M = master_t<T>;

  void check(const kernels::RotaryScaling& scaling, index_t width, const std::vector<double>& frequencies,
             const kernels::RotaryPairs& pairs = {}) {
    const index_t tokens = 9, heads = 3, leading = 3 * width + 11, positions = 600;
    const auto half = static_cast<index_t>(frequencies.size());
    Array<M> cosine(positions * half), sine(positions * half);
    kernels::rotary_tables<M>(this->device_, theta, cosine.matrix(positions, half), sine.matrix(positions, half),
                              scaling);
    Array<std::int32_t> at(tokens);
    for (index_t t = 0; t < tokens; ++t) at.host[t] = static_cast<std::int32_t>(t * 74);
    at.push();
    auto x = Array<T>::random(tokens * leading, 1);
    const auto start = x.host;
    const MatrixRef<T> columns{x.data() + 5, tokens, heads * width, leading};
    kernels::rotary_forward<T>(this->device_, columns, at.read(), cosine.read(positions, half),
                               sine.read(positions, half), pairs);
    this->device_.fence();
    x.pull();
    std::vector<double> expected(start.begin(), start.end());
    kernels::reference::rotary({expected.data() + 5, tokens, heads * width, leading}, frequencies, at.host.data(), 1.0,
                               scaling.magnitude(), pairs);
    // The tables are rounded once to M, two products and a sum follow, then one rounding to T.
    const double tolerance = 4 * unit_roundoff<M>() + unit_roundoff<T>();
    expect_close(x.host, expected, tolerance + 1e-13);  // 1e-13: cos of an angle of several hundred
    kernels::rotary_backward<T>(this->device_, columns, at.read(), cosine.read(positions, half),
                                sine.read(positions, half), pairs);
    this->device_.fence();
    x.pull();
    std::vector<double> back(start.begin(), start.end());  // the transpose turns back, and multiplies once more
    for (index_t t = 0; t < tokens; ++t) {
      for (index_t c = 0; c < heads * width; ++c) {
        if (!pairs.interleaved && c % width >= 2 * half) continue;  // not turned
        back[static_cast<std::size_t>(t * leading + 5 + c)] *= scaling.magnitude() * scaling.magnitude();
      }
    }
    expect_close(x.host, back, 4 * tolerance);
  }

  void check_with_bias(index_t part, const kernels::RotaryPairs& pairs) {
    const index_t tokens = 7, width = 12, rotated = 3 * width, columns = rotated + 17, leading = columns + 5,
                  half = part / 2;
    Array<M> cosine(tokens * half), sine(tokens * half);
    kernels::rotary_tables<M>(this->device_, theta, cosine.matrix(tokens, half), sine.matrix(tokens, half));
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
                               kernels::reference::rotary_frequencies(theta, part), at.host.data(), 1.0, 1.0, pairs);
    kernels::bias_rotary_forward<T>(this->device_, {x.matrix(tokens, leading).data(), tokens, columns, leading},
                                    rotated, bias.read(), at.read(), cosine.read(tokens, half), sine.read(tokens, half),
                                    pairs);
    this->device_.fence();
    x.pull();
    expect_close(x.host, expected, 5 * unit_roundoff<M>() + unit_roundoff<T>() + 1e-15);
  }
};
TYPED_TEST_SUITE(Rotary, ScalarTypes);

TYPED_TEST(Rotary, FollowsTheReferenceAndTurnsBack) {
  this->check({}, 20, kernels::reference::rotary_frequencies(theta, 20));
}

// The first elements of a head, neighbours in pairs, and both.
TYPED_TEST(Rotary, PairsOfAHead) {
  const auto f = kernels::reference::rotary_frequencies(theta, 8);
  this->check({}, 20, f, {.head_dim = 20});
  this->check({}, 8, f, {.interleaved = true});
  this->check({}, 20, f, {.head_dim = 20, .interleaved = true});
}

// Heads in the first columns only, and a bias on all of them.
TYPED_TEST(Rotary, BiasAndRotationInOnePass) {
  for (const bool interleaved : {false, true}) {
    for (const index_t part : {12, 4}) {
      SCOPED_TRACE(testing::Message() << interleaved << part);
      this->check_with_bias(part, {.head_dim = 12, .interleaved = interleaved});
    }
  }
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
  // Between pairs that are not rounded: another share of both frequencies.
  kernels::RotaryScaling::Yarn whole = scaling;
  whole.truncate = false;
  const kernels::RotaryScaling unrounded(whole, theta, 32);
  const double d = 32.0, low = d * std::log(256.0 / (8.0 * 2.0 * std::numbers::pi)) / (2.0 * std::log(theta)),
               high = d * std::log(256.0 / (2.0 * std::numbers::pi)) / (2.0 * std::log(theta));
  for (index_t i = 0; i < 16; ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    EXPECT_NEAR(unrounded(1.0, i), ramp / 4.0 + 1.0 - ramp, 1e-14) << i;
  }
}

// Frequencies of transformers 4.57 and 5.24 (fp32), for heads of 16.
void expect_frequencies(const kernels::RotaryScaling& scaling, double base, const std::vector<double>& expected) {
  const auto f = kernels::reference::rotary_frequencies(base, 16);
  for (std::size_t i = 0; i < f.size(); ++i) {
    EXPECT_NEAR(scaling(f[i], static_cast<index_t>(i)), expected[i], 1e-7 * expected[i]) << i;
  }
}

TEST(RotaryScaling, LinearAndDynamicAreThoseOfTransformers) {
  expect_frequencies(kernels::RotaryScaling(kernels::RotaryScaling::Linear{4.0}), theta,
                     {0.25, 0.07905694097280502, 0.02500000037252903, 0.007905694656074047, 0.0024999999441206455,
                      0.0007905694656074047, 0.0002500000118743628, 7.905694656074047e-05});
  expect_frequencies({}, kernels::dynamic_theta(theta, 4.0, 64.0, 100.0, 16),
                     {1.0, 0.2672230005264282, 0.07140812277793884, 0.01908189244568348, 0.005099120084196329,
                      0.0013626019936054945, 0.00036411857581697404, 9.730085002956912e-05});
  EXPECT_EQ(kernels::dynamic_theta(theta, 4.0, 64.0, 10.0, 16), theta);
}

TEST(RotaryScaling, LongRopeIsThatOfTransformers) {
  kernels::RotaryScaling::LongRope of{.factor = 4.0, .original_length = 64.0};
  for (int i = 0; i < 8; ++i) of.factors.push_back(1.0 + 0.125 * i);
  const kernels::RotaryScaling scaling(of);
  EXPECT_DOUBLE_EQ(scaling.magnitude(), 1.1547005383792517);
  expect_frequencies(scaling, theta,
                     {1.0, 0.2810913622379303, 0.07999999821186066, 0.02299838326871395, 0.006666666828095913,
                      0.0019460170296952128, 0.0005714285653084517, 0.00016865480574779212});
  of.attention_factor = 1.25;
  EXPECT_EQ(kernels::RotaryScaling(of).magnitude(), 1.25);
}

}  // namespace
}  // namespace nanotron::test
