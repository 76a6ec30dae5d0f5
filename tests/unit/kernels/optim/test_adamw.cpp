// ranks: 1
#include "unit/kernels/kernel_test.hpp"
#include "nanotron/kernels/optim/adamw.hpp"
#include "support/reference/adamw.hpp"

namespace nanotron::test {
namespace {

template <class M>
class Adamw : public KernelTest<M> {};
using MasterTypes = ::testing::Types<double, float>;
TYPED_TEST_SUITE(Adamw, MasterTypes);

TYPED_TEST(Adamw, TwentyStepsFollowTheTwin) {
  using M = TypeParam;
  const index_t n = 10007;
  auto p = Array<M>::random(n, 1), m = Array<M>(n), v = Array<M>(n);
  std::vector<double> p2(p.host.begin(), p.host.end()), m2(n), v2(n);
  for (int t = 1; t <= 20; ++t) {
    const auto g = Array<M>::random(n, 100 + t, 0.1);
    const kernels::AdamwStep step{.learning_rate = 1e-2,
                                  .beta1 = 0.9,
                                  .beta2 = 0.95,
                                  .eps = 1e-8,
                                  .weight_decay = 0.1,
                                  .step = t,
                                  .gradient_scale = 0.5};
    kernels::adamw<M>(this->device_, p.vector(), g.read(), m.vector(), v.vector(), step);
    for (index_t i = 0; i < n; ++i) {
      kernels::reference::adamw(p2[i], static_cast<double>(g.host[i]), m2[i], v2[i], step);
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
  const kernels::AdamwStep step{.learning_rate = 1e-2, .weight_decay = 0.1};
  kernels::adamw<M>(this->device_, p.vector(), g.read(), m.vector(), v.vector(), step, copy.vector());
  kernels::adamw<M>(this->device_, plain.vector(), g.read(), m2.vector(), v2.vector(), step);
  this->device_.fence();
  p.pull(), plain.pull(), copy.pull();
  EXPECT_EQ(p.host, plain.host);
  for (std::size_t i = 0; i < p.host.size(); ++i) {
    EXPECT_EQ(copy.host[i].bits, bf16(static_cast<float>(p.host[i])).bits);
  }
}

}  // namespace
}  // namespace nanotron::test
