// ranks: 1
// Rows of bf16 added one after the other, against plain loops.
#include <gtest/gtest.h>

#include "nanotron/base/random.hpp"
#include "nanotron/kernels/elementwise/elementwise.hpp"
#include "support/device_values.hpp"

namespace nanotron::kernels {
namespace {

template <class M>
class AddRows : public testing::Test {
 protected:
  Timers timers_;
  Device device_{timers_};
};
using Masters = testing::Types<double, float>;
TYPED_TEST_SUITE(AddRows, Masters);

TYPED_TEST(AddRows, InTheirOrderAndInTheTypeOfTheSum) {
  using M = TypeParam;
  for (const index_t rows : {1, 2, 7}) {
    for (const index_t n : {1, 8, 67, 4096, 10007}) {
      const Kokkos::View<bf16*, MemorySpace> x("x", static_cast<std::size_t>(rows * n));
      const Kokkos::View<M*, MemorySpace> y("y", static_cast<std::size_t>(n));
      std::vector<bf16> addends;
      std::vector<M> sum;
      for (index_t i = 0; i < rows * n; ++i)
        addends.push_back(bf16(static_cast<float>(normal(1, 2, static_cast<std::uint64_t>(i)))));
      for (index_t i = 0; i < n; ++i) sum.push_back(static_cast<M>(normal(3, 4, static_cast<std::uint64_t>(i))));
      test::set_values(x, addends);
      test::set_values(y, sum);
      add_rows<M>(this->device_, Matrix<const bf16>(x.data(), rows, n), Vector<M>(y.data(), n));
      for (index_t i = 0; i < n; ++i) {
        for (index_t r = 0; r < rows; ++r)
          sum[static_cast<std::size_t>(i)] +=
              static_cast<M>(static_cast<float>(addends[static_cast<std::size_t>(r * n + i)]));
      }
      EXPECT_EQ(test::values_of(y), sum) << rows << " rows of " << n;
    }
  }
}

}  // namespace
}  // namespace nanotron::kernels
