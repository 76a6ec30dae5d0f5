// ranks: 1
#include "nanotron/tensor/stream_timers.hpp"

#include <gtest/gtest.h>

#include <string>

#include "nanotron/tensor/device.hpp"

namespace nanotron {
namespace {

TimerRow row_of(Timers& timers, const std::string& name) {
  for (const TimerRow& row : timers.rows()) {
    if (row.name == name) return row;
  }
  return {};
}

// A kernel of one thread that takes many milliseconds.
void launch_slow_kernel(const Device& device, Vector<double> sink) {
  Kokkos::parallel_for(
      "slow", Kokkos::RangePolicy<ExecutionSpace, Kokkos::IndexType<index_t>>(device.exec(), 0, 1),
      KOKKOS_LAMBDA(const index_t i) {
        double x = 0;
        for (int n = 0; n < 10'000'000; ++n) x = 0.5 * x + n;
        sink.data()[i] = x;
      });
}

class StreamTimers : public testing::Test {
 protected:
  std::unique_ptr<Timers> timers_ = make_stream_timers(stream_of(ExecutionSpace()));
  Device device_{*timers_};
  Kokkos::View<double*, MemorySpace> memory_{"sink", 1};
  Vector<double> sink_{memory_.data(), 1};
};

TEST_F(StreamTimers, ARegionHasTheTimeOfItsKernelsAndNotOfTheWaitForThem) {
  device_.fence();
  const double begin = wall_seconds();
  {
    const Region step(*timers_, "step");
    {
      const Region region(*timers_, "kernel");
      launch_slow_kernel(device_, sink_);
    }
    const Region region(*timers_, "wait");
    device_.fence();
  }
  const double all = wall_seconds() - begin;
  const TimerRow kernel = row_of(*timers_, "kernel"), wait = row_of(*timers_, "wait"), step = row_of(*timers_, "step");
  EXPECT_GT(kernel.inclusive, 0.5 * all);
  EXPECT_LT(wait.inclusive, 0.4 * all);
  EXPECT_NEAR(step.inclusive, kernel.inclusive + wait.inclusive + step.exclusive, 1e-9);
  EXPECT_LE(step.inclusive, all * 1.01);
}

TEST_F(StreamTimers, StepsThatAreReadLaterAreAllCounted) {
  for (int i = 0; i < 50; ++i) {
    const Region step(*timers_, "step");
    for (int k = 0; k < 3; ++k) {
      const Region region(*timers_, "fill");
      Kokkos::deep_copy(device_.exec(), sink_, 1.0);
    }
  }
  EXPECT_EQ(row_of(*timers_, "step").calls, 50u);
  EXPECT_EQ(row_of(*timers_, "fill").calls, 150u);
  timers_->reset();
  EXPECT_EQ(row_of(*timers_, "fill").calls, 0u);
}

}  // namespace
}  // namespace nanotron
