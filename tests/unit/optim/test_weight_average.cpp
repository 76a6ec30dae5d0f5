// ranks: 1
#include "nanotron/optim/weight_average.hpp"

#include "support/reference/weight_average.hpp"
#include "unit/kernels/kernel_test.hpp"
#include "unit/kernels/optim/scalars.hpp"

namespace nanotron::test {
namespace {

template <class M>
class WeightAverage : public KernelTest<M> {};
using MasterTypes = ::testing::Types<double, float>;
TYPED_TEST_SUITE(WeightAverage, MasterTypes);

TYPED_TEST(WeightAverage, FollowsTheReference) {
  using M = TypeParam;
  for (const index_t n : {1, 3, 4, 4097, 10007}) {
    auto average = Array<M>::random(n, 1);
    std::vector<double> expected(average.host.begin(), average.host.end());
    const Scalars scalars({});
    for (int step = 1; step <= 20; ++step) {
      const auto p = Array<M>::random(n, 100 + static_cast<unsigned>(step));
      optim::update_average<M>(this->device_, average.vector(), p.read(), 0.9, scalars.read());
      reference::weight_average(expected, std::vector<double>(p.host.begin(), p.host.end()), 0.9);
      this->device_.fence();
    }
    average.pull();
    // Three roundings a step, of values of at most 2, which the next steps shrink by 0.9.
    expect_close(average.host, expected, 10 * 3 * 2 * unit_roundoff<M>());
  }
}

TYPED_TEST(WeightAverage, SkipsWhatTheDeviceDecidedToSkip) {
  using M = TypeParam;
  auto average = Array<M>::random(5003, 1);
  const auto p = Array<M>::random(5003, 2);
  const Scalars skipped = Scalars::skipped();
  optim::update_average<M>(this->device_, average.vector(), p.read(), 0.9, skipped.read());
  this->device_.fence();
  EXPECT_TRUE(is_unchanged(average));
}

}  // namespace
}  // namespace nanotron::test
