// ranks: 1
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "nanotron/base/timer.hpp"

namespace nanotron {
namespace {

void spend(int milliseconds) { std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds)); }

TimerRow row_of(Timers& timers, const std::string& name) {
  for (const TimerRow& row : timers.rows()) {
    if (row.name == name) return row;
  }
  return {};
}

TEST(Timers, NestedRegionsShareTheTime) {
  Timers timers;
  for (int i = 0; i < 3; ++i) {
    const Region outer(timers, "outer");
    spend(2);
    const Region inner(timers, "inner");
    spend(4);
  }
  const TimerRow outer = row_of(timers, "outer"), inner = row_of(timers, "inner");
  EXPECT_EQ(outer.calls, 3u);
  EXPECT_EQ(inner.calls, 3u);
  EXPECT_GE(inner.inclusive, 0.012);
  EXPECT_DOUBLE_EQ(inner.inclusive, inner.exclusive);
  EXPECT_GE(outer.exclusive, 0.006);
  EXPECT_NEAR(outer.inclusive, outer.exclusive + inner.inclusive, 1e-9);
}

TEST(Timers, ARegionInsideItselfIsCountedOnce) {
  Timers timers;
  const double begin = wall_seconds();
  {
    const Region a(timers, "same");
    const Region b(timers, "same");
    spend(3);
  }
  const double total = wall_seconds() - begin;
  EXPECT_LE(row_of(timers, "same").inclusive, total);
  EXPECT_NEAR(row_of(timers, "same").inclusive, row_of(timers, "same").exclusive, 1e-9);
}

TEST(Timers, EqualNamesAtDifferentAddressesAreOneRow) {
  static const char first[] = "twice", second[] = "twice";
  Timers timers;
  { const Region a(timers, first); }
  { const Region b(timers, second); }
  ASSERT_EQ(timers.rows().size(), 1u);
  EXPECT_EQ(timers.rows()[0].calls, 2u);
}

TEST(Timers, ManyNamesKeepTheirCountsAndResetClearsThem) {
  static char names[1000][16];
  Timers timers;
  for (int i = 0; i < 1000; ++i) {
    std::snprintf(names[i], sizeof names[i], "r%d", i);
    for (int k = 0; k <= i % 3; ++k) {
      const Region region(timers, names[i]);
    }
  }
  const std::vector<TimerRow> rows = timers.rows();
  ASSERT_EQ(rows.size(), 1000u);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(rows[i].calls, 1u + i % 3);
  timers.reset();
  EXPECT_EQ(timers.rows()[5].calls, 0u);
  EXPECT_NE(timers.table(1.0).find("region"), std::string::npos);
}

// a (b (c)), where b is no phase: c counts for itself, b for a; nothing in a closed one counts for itself.
TEST(Timers, PhasesShareTheTimeOnce) {
  Timers timers;
  timers.set_phases({{"a"}, {"c"}, {"closed", Phase::Kind::closed}});
  const auto nest = [&](const char* outer) {
    const Region region(timers, outer);
    spend(2);
    const Region b(timers, "b");
    spend(3);
    const Region c(timers, "c");
    spend(4);
  };
  const double begin = wall_seconds();
  nest("a");
  nest("closed");
  const double all = wall_seconds() - begin;
  const std::vector<double> seconds = timers.phase_seconds();
  ASSERT_EQ(seconds.size(), 3u);
  EXPECT_GE(seconds[0], 0.005);
  EXPECT_GE(seconds[1], 0.004);
  EXPECT_GE(seconds[2], 0.009);
  EXPECT_LE(seconds[0] + seconds[1] + seconds[2], all);
  EXPECT_NEAR(seconds[0] + seconds[1], row_of(timers, "a").inclusive, 1e-9);
  EXPECT_NEAR(seconds[2], row_of(timers, "closed").inclusive, 1e-9);
  timers.reset();
  EXPECT_EQ(timers.phase_seconds(), std::vector<double>(3, 0.0));
}

TEST(Timers, AVisitCostsNoMoreThanSomeMicroseconds) {
  Timers timers;
  double best = 1.0;
  for (int attempt = 0; attempt < 20; ++attempt) {
    const double begin = wall_seconds();
    for (int i = 0; i < 10000; ++i) {
      const Region region(timers, "visit");
    }
    best = std::min(best, (wall_seconds() - begin) / 10000);
  }
  RecordProperty("nanoseconds", static_cast<int>(best * 1e9));
  std::printf("a region costs %.0f ns\n", best * 1e9);
#ifndef NANOTRON_WITH_SANITIZERS
  EXPECT_LT(best, 1e-5);  // also where the clock is a system call
#endif
}

}  // namespace
}  // namespace nanotron
