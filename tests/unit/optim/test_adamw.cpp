// ranks: 1
#include "nanotron/optim/adamw/adamw.hpp"

#include "support/reference/adamw.hpp"
#include "unit/kernels/kernel_test.hpp"
#include "unit/kernels/optim/scalars.hpp"

namespace nanotron::test {
namespace {

// Update t of an optimizer with two states.
template <class M, class S>
void adamw(Device& device, const Array<M>& p, const Array<M>& g, const Array<S>& m, const Array<S>& v,
           const optim::AdamwStep& step, std::int64_t t, const Scalars& scalars,
           const kernels::RoundingNoise& noise = {}, Vector<bf16> copy = {}) {
  optim::update_by_adamw<M>(device,
                            {.p = p.vector(),
                             .g = g.read(),
                             .states = {m.vector(), v.vector()},
                             .scalars = scalars.read(),
                             .copy = copy,
                             .noise = noise,
                             .update = t},
                            step);
}

template <class M>
class Adamw : public KernelTest<M> {};
using MasterTypes = ::testing::Types<double, float>;
TYPED_TEST_SUITE(Adamw, MasterTypes);

TYPED_TEST(Adamw, TwentyStepsFollowTheReference) {
  using M = TypeParam;
  const index_t n = 10007;
  auto p = Array<M>::random(n, 1), m = Array<M>(n), v = Array<M>(n);
  std::vector<double> p2(p.host.begin(), p.host.end()), m2(n), v2(n);
  const Scalars half = Scalars::scaled(0.5);
  for (int t = 1; t <= 20; ++t) {
    const auto g = Array<M>::random(n, 100 + t, 0.1);
    const optim::AdamwStep step{.learning_rate = 1e-2, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};
    adamw(this->device_, p, g, m, v, step, t, half);
    for (index_t i = 0; i < n; ++i) {
      optim::reference::adamw(p2[i], 0.5 * static_cast<double>(g.host[i]), m2[i], v2[i], step, t);
    }
  }
  this->device_.fence();
  p.pull(), m.pull(), v.pull();
  // A step makes about 5 roundings of each of p, m and v; 20 steps, and m / sqrt(v) is of order 1.
  expect_close(p.host, p2, 20 * 5 * unit_roundoff<M>());
  expect_close(m.host, m2, 20 * 5 * unit_roundoff<M>());
  expect_close(v.host, v2, 20 * 5 * unit_roundoff<M>());
}

// The same bits as without a copy, and the copy is what a cast would make of them.
TYPED_TEST(Adamw, WritesTheCopyInBf16) {
  using M = TypeParam;
  const index_t n = 5003;
  auto p = Array<M>::random(n, 1), plain = Array<M>::random(n, 1), m = Array<M>(n), v = Array<M>(n), m2 = Array<M>(n),
       v2 = Array<M>(n);
  const auto g = Array<M>::random(n, 2);
  auto copy = Array<bf16>(n, 7.0);
  const optim::AdamwStep step{.learning_rate = 1e-2, .weight_decay = 0.1};
  const Scalars whole({});
  adamw(this->device_, p, g, m, v, step, 1, whole, {}, copy.vector());
  adamw(this->device_, plain, g, m2, v2, step, 1, whole);
  this->device_.fence();
  p.pull(), plain.pull(), copy.pull();
  EXPECT_EQ(p.host, plain.host);
  for (std::size_t i = 0; i < p.host.size(); ++i) {
    EXPECT_EQ(copy.host[i].bits, bf16(static_cast<float>(p.host[i])).bits);
  }
}

TYPED_TEST(Adamw, SkipsWhatTheDeviceDecidedToSkip) {
  using M = TypeParam;
  const index_t n = 5003;
  const auto p = Array<M>::random(n, 1), m = Array<M>::random(n, 2), v = Array<M>(n, 0.5), g = Array<M>(n, INFINITY);
  const auto copy = Array<bf16>(n, 7.0);
  adamw(this->device_, p, g, m, v, {.learning_rate = 1.0}, 1, Scalars::skipped(), {}, copy.vector());
  this->device_.fence();
  EXPECT_TRUE(is_unchanged(p) && is_unchanged(m) && is_unchanged(v) && is_unchanged(copy));
}

TEST(AdamwInFp64, RefusesStatesInBf16) {
  Timers timers;
  Device device(timers);
  const auto p = Array<double>::random(8, 1), g = Array<double>::random(8, 2);
  const Array<bf16> m(8), v(8);
  EXPECT_THROW(adamw(device, p, g, m, v, {.learning_rate = 1.0}, 1, Scalars({})), Error);
}

class AdamwBf16Moments : public KernelTest<float> {
 protected:
  struct State {
    State(index_t n, unsigned seed)
        : p(Array<float>::random(n, seed)), m(Array<bf16>::random(n, seed + 1)), v(Array<bf16>::random(n, seed + 2)) {
      for (bf16& x : v.host) x = bf16(std::abs(x));
      v.push();
    }
    Array<float> p;
    Array<bf16> m, v;
  };
  static constexpr optim::AdamwStep step_{.learning_rate = 1e-2, .weight_decay = 0.1};
  // The first moment of an update with beta1 = 0 is the gradient, rounded.
  std::vector<bf16> rounded(const Array<float>& g, const kernels::RoundingNoise& noise, std::int64_t t = 1) {
    Array<float> p(g.size());
    Array<bf16> m(g.size()), v(g.size());
    adamw(device_, p, g, m, v, {.beta1 = 0.0}, t, whole_, noise);
    device_.fence();
    m.pull();
    return m.host;
  }
  Scalars whole_{{}};
};

// The parameters are those of an update with the same moments in fp32; each moment is a neighbour of what it gives.
TEST_F(AdamwBf16Moments, RoundsNothingButTheMomentsItStores) {
  const index_t n = 5003;
  State a(n, 1), b(n, 1);
  Array<float> m(n), v(n);
  for (index_t i = 0; i < n; ++i) m.host[i] = a.m.host[i], v.host[i] = a.v.host[i];
  m.push(), v.push();
  const auto g = Array<float>::random(n, 9);
  const Scalars half = Scalars::scaled(0.5);
  adamw(device_, a.p, g, a.m, a.v, step_, 7, half, {.seed = 3});
  adamw(device_, b.p, g, m, v, step_, 7, half);
  device_.fence();
  for (auto* x : {&a.p, &b.p, &m, &v}) x->pull();
  a.m.pull(), a.v.pull();
  EXPECT_EQ(a.p.host, b.p.host);
  index_t up = 0;
  for (index_t i = 0; i < n; ++i) {
    for (const auto& [stored, exact] : {std::pair{a.m.host[i], m.host[i]}, std::pair{a.v.host[i], v.host[i]}}) {
      ASSERT_LT(std::abs(static_cast<float>(stored) - exact), std::ldexp(std::abs(exact), -7)) << i;
    }
    up += std::abs(static_cast<float>(a.v.host[i])) > v.host[i] ? 1 : 0;
  }
  EXPECT_NEAR(static_cast<double>(up) / static_cast<double>(n), 0.5, 0.05);
}

TEST_F(AdamwBf16Moments, TheMeanErrorIsZeroAndExactValuesStay) {
  const index_t n = 1 << 16;
  const double unit = 0x1p-7;  // between neighbours of 1
  for (const double part : {0.0, 0.1, 0.5, 0.83}) {
    Array<float> g(n);
    for (float& x : g.host) x = static_cast<float>(-1.0 - part * unit);
    g.push();
    double sum = 0;
    for (const bf16 x : rounded(g, {.seed = 5, .stream = 17})) sum += static_cast<float>(x);
    const double deviation = unit * std::sqrt(part * (1 - part) / static_cast<double>(n));
    EXPECT_NEAR(sum / static_cast<double>(n), -1.0 - part * unit, 5 * deviation) << part;
  }
  Array<float> odd(3);
  odd.host = {INFINITY, -INFINITY, NAN};
  odd.push();
  const std::vector<bf16> kept = rounded(odd, {});
  EXPECT_EQ(static_cast<float>(kept[0]), INFINITY);
  EXPECT_EQ(static_cast<float>(kept[1]), -INFINITY);
  EXPECT_TRUE(std::isnan(static_cast<float>(kept[2])));
}

// A shard of columns, cut anywhere, has the bits of the whole matrix; another update, stream or seed has others.
TEST_F(AdamwBf16Moments, BitsDependOnTheElementNotOnTheCut) {
  const index_t rows = 13, columns = 24, first = 7, width = 10;
  const auto whole = Array<float>::random(rows * columns, 4);
  const kernels::RoundingNoise all{.seed = 11, .stream = 2, .index = {columns, columns, 5 * rows * columns}};
  const std::vector<bf16> expected = rounded(whole, all);
  for (const index_t begin : {0, 1, 4, 57}) {
    Array<float> part(rows * width - begin);
    for (index_t i = 0; i < part.size(); ++i) {
      part.host[i] = whole.host[(i + begin) / width * columns + first + (i + begin) % width];
    }
    part.push();
    kernels::RoundingNoise noise = all;
    noise.index = {width, columns, all.index.first + first};
    noise.begin = begin;
    const std::vector<bf16> ours = rounded(part, noise);
    for (index_t i = 0; i < part.size(); ++i) {
      ASSERT_EQ(ours[i].bits, expected[(i + begin) / width * columns + first + (i + begin) % width].bits) << begin;
    }
  }
  const auto differs = [&](const std::vector<bf16>& other) {
    index_t count = 0;
    for (std::size_t i = 0; i < other.size(); ++i) count += other[i].bits != expected[i].bits;
    return count;
  };
  EXPECT_EQ(differs(rounded(whole, all)), 0);
  EXPECT_GT(differs(rounded(whole, all, 2)), rows * columns / 10);
  EXPECT_GT(differs(rounded(whole, {.seed = 12, .stream = 2, .index = all.index})), rows * columns / 10);
  EXPECT_GT(differs(rounded(whole, {.seed = 11, .stream = 3, .index = all.index})), rows * columns / 10);
}

TEST_F(AdamwBf16Moments, SkipsWhatTheDeviceDecidedToSkip) {
  const State a(5003, 1);
  const Array<float> g(5003, NAN);
  adamw(device_, a.p, g, a.m, a.v, step_, 7, Scalars::skipped(), {.seed = 3});
  device_.fence();
  EXPECT_TRUE(is_unchanged(a.p) && is_unchanged(a.m) && is_unchanged(a.v));
}

// With beta2 = 0.999 nearest rounding would keep v at 1 forever.
TEST_F(AdamwBf16Moments, SmallChangesAddUp) {
  const index_t n = 4096;
  Array<float> p(n), g(n);
  Array<bf16> m(n), v(n, 1.0);
  const double beta2 = 0.999;
  const int updates = 1000;
  for (int t = 1; t <= updates; ++t) {
    adamw(device_, p, g, m, v, {.beta2 = beta2}, t, whole_, {.seed = 1});
  }
  device_.fence();
  v.pull();
  double mean = 0;
  for (const bf16 x : v.host) mean += static_cast<float>(x) / static_cast<double>(n);
  EXPECT_NEAR(mean, std::pow(beta2, updates), 0.005 * std::pow(beta2, updates));
}

}  // namespace
}  // namespace nanotron::test
