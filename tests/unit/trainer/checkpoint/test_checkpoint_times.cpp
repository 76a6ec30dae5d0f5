#include "nanotron/trainer/checkpoint/checkpoint_times.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>

#include "nanotron/comm/group.hpp"

namespace nanotron::trainer {
namespace {

// Seconds per second of work with checkpoints after T seconds, failures at random moments and no time to restart
// (Daly's model of the total time, eq. 20).
double slowdown(double interval, double cost, double between_failures) {
  return between_failures * std::expm1((interval + cost) / between_failures) / interval;
}

TEST(CheckpointTimes, TheIntervalIsTheBestOfDalysModel) {
  for (const double cost : {0.5, 20.0, 300.0}) {
    for (const double between_failures : {600.0, 1e4, 1e6}) {
      const double chosen = slowdown(best_interval(cost, between_failures), cost, between_failures);
      double least = chosen;
      for (double interval = 1.0; interval < 1e6; interval *= 1.01)
        least = std::min(least, slowdown(interval, cost, between_failures));
      EXPECT_LE(chosen, 1.002 * least) << cost << " " << between_failures;
    }
  }
  EXPECT_EQ(best_interval(100.0, 40.0), 40.0);
}

TEST(CheckpointTimes, StepsAloneNeedNoClock) {
  Log log(false);
  CheckpointTimes times({.directory = {}, .every_steps = 5}, 1, log);
  EXPECT_FALSE(times.is_due(comm::alone(), 4));
  EXPECT_TRUE(times.is_due(comm::alone(), 5));
}

TEST(CheckpointTimes, TimeBeginsAgainWithACheckpoint) {
  Log log(false);
  CheckpointTimes times({.directory = {}, .every_minutes = 0.1 / 60.0}, 1, log);
  times.begin();
  EXPECT_FALSE(times.is_due(comm::alone(), 1));
  std::this_thread::sleep_for(std::chrono::milliseconds(120));
  EXPECT_TRUE(times.is_due(comm::alone(), 2));
  times.begin();
  EXPECT_FALSE(times.is_due(comm::alone(), 3));
}

// The job fails every 5.3 s. What training waits alone would give an interval of 3 ms.
TEST(CheckpointTimes, SlowerStepsBesideOneAreItsCost) {
  Log log(false);
  CheckpointTimes times({.directory = {}, .node_mtbf = 1.0}, 1 << 14, log);
  for (const double seconds : {9.0, 1.0, 1.0}) times.record_step(seconds, 8, false);  // the first one does not count
  for (const double seconds : {2.1, 2.1}) times.record_step(seconds, 16, true);
  times.record({.step = 3, .taken = 2.2, .waited = 1e-6});
  times.begin();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(times.is_due(comm::alone(), 4));
}

TEST(CheckpointTimes, CheapOnesAndManyNodesMakeThemFrequent) {
  Log log(false);
  CheckpointTimes times({.directory = {}, .node_mtbf = 1.0}, 1 << 20, log);  // the job fails every 82 ms
  times.record({.step = 1, .taken = 1.0, .waited = 1e-6});
  times.begin();
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  EXPECT_TRUE(times.is_due(comm::alone(), 1));
}

}  // namespace
}  // namespace nanotron::trainer
