#include "nanotron/kernels/loop/loop.hpp"

#include <gtest/gtest.h>

#include "support/device_values.hpp"

namespace nanotron::kernels {
namespace {

// Functions of their own: a device lambda may not be in the body of a test, which is private.
index_t sum_of_row_numbers(const Device& device, index_t rows) {
  const Kokkos::View<index_t*, Kokkos::LayoutRight, MemorySpace> sum("sum", 1);
  Kokkos::deep_copy(device.exec(), sum, index_t{7});
  sum_of_rows<index_t>(
      device, "row numbers", rows, KOKKOS_LAMBDA(const Row&, const index_t i) { return i; }, sum);
  return test::values_of(sum).front();
}
index_t sum_of_numbers(const Device& device, index_t begin, index_t end) {
  index_t sum = 0;
  Kokkos::parallel_reduce(
      "numbers", RangePolicy(device.exec(), begin, end), KOKKOS_LAMBDA(const index_t i, index_t& total) { total += i; },
      sum);
  return sum;
}

class Loop : public testing::Test {
 protected:
  Timers timers_;
  Device device_{timers_};
};

TEST_F(Loop, MoreRowsThanAGridHasAreRefused) {
  EXPECT_NO_THROW(team_policy(device_, 1000));
  EXPECT_THROW(team_policy(device_, index_t{1} << 31), Error);
}

// 1120 and 1376 chunks of 8: SwiGLU of 8960 and 11008 columns. Of warps twice as wide a team has half as many to share
// them.
TEST(TeamThreads, AreBusyInTheirLastTurnToo) {
  constexpr index_t lanes = gpu_warp_size;
  constexpr bool is_wide = lanes == 64;
  constexpr double least = is_wide ? 0.91 : 0.94;
  for (index_t warps = 1; warps < 3000; ++warps) {
    const index_t chunks = lanes * warps, threads = team_threads<bf16>(chunks * chunk_width<bf16>);
    const index_t turns = (chunks + threads - 1) / threads;
    ASSERT_TRUE(threads % lanes == 0 && threads <= 512) << threads;
    EXPECT_GE(static_cast<double>(chunks), least * static_cast<double>(turns * threads)) << chunks << " by " << threads;
  }
  EXPECT_EQ(team_threads<bf16>(1), lanes);
  EXPECT_EQ(team_threads<bf16>(1120 * chunk_width<bf16>), is_wide ? 384 : 224);
  EXPECT_EQ(team_threads<bf16>(1376 * chunk_width<bf16>), is_wide ? 512 : 352);
}

TEST_F(Loop, SumsEachRowOnce) {
  for (const index_t rows : {0, 1, 1000}) EXPECT_EQ(sum_of_row_numbers(device_, rows), rows * (rows - 1) / 2);
}

TEST_F(Loop, NumbersOfElementsHave64Bits) {
  const index_t begin = (index_t{1} << 33) - 2;
  EXPECT_EQ(sum_of_numbers(device_, begin, begin + 3), 3 * begin + 3);
}

}  // namespace
}  // namespace nanotron::kernels
