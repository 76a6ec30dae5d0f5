#include "nanotron/base/flight_recorder.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "nanotron/base/timer.hpp"

namespace nanotron {
namespace {

using Kind = FlightRecorder::Kind;

TEST(FlightRecorder, CountsTheOperationsOfEachGroup) {
  FlightRecorder r;
  r.turn(true);
  const int tp = r.group("tp group 3", {16, 17}), dp = r.group("dp group 0", {1, 17});
  EXPECT_EQ(r.group("tp group 3", {16, 17}), tp);
  r.begin_step(7);
  r.enter("forward");
  r.at_layer(12);
  r.at_part("mlp");
  r.end(r.begin(tp, "all_reduce", 64, Kind::blocking));
  const Recorded started = r.begin(dp, "reduce_scatter", 32, Kind::started);
  const Recorded blocking = r.begin(tp, "all_gather", 16, Kind::blocking);

  const FlightSnapshot s = r.snapshot();
  EXPECT_EQ(s.groups[static_cast<std::size_t>(tp)].entered, 2u);
  EXPECT_EQ(s.groups[static_cast<std::size_t>(dp)].entered, 1u);
  EXPECT_EQ(s.groups[static_cast<std::size_t>(tp)].ranks, (std::vector<int>{16, 17}));
  ASSERT_EQ(s.records.size(), 3u);
  EXPECT_STREQ(s.records[0].name, "all_reduce");
  EXPECT_EQ(s.records[0].bytes, 64u);
  EXPECT_GT(s.records[0].end, 0);
  EXPECT_EQ(s.records[1].end, 0);
  EXPECT_EQ(s.records[0].place.step, 7);
  EXPECT_STREQ(s.records[0].place.phase, "forward");
  EXPECT_STREQ(s.records[0].place.part, "mlp");
  EXPECT_EQ(s.records[0].place.layer, 12);
  EXPECT_EQ(s.waits_for.group, tp);
  EXPECT_EQ(s.waits_for.sequence, 2u);
  EXPECT_STREQ(s.waits_in, "all_gather");

  r.end(blocking);
  EXPECT_EQ(r.snapshot().waits_for.sequence, 0u);
  r.wait_for(started, "wait");
  EXPECT_EQ(r.snapshot().waits_for.group, dp);
  EXPECT_STREQ(r.snapshot().waits_in, "reduce_scatter");
  r.end(started);
  EXPECT_GT(r.snapshot().records[1].end, 0);
}

TEST(FlightRecorder, RecordsNothingWithinABlockingOperationNorWhenOff) {
  FlightRecorder r;
  const int tp = r.group("tp group 0", {0, 1});
  EXPECT_EQ(r.begin(tp, "all_reduce", 1, Kind::blocking).sequence, 0u);
  r.turn(true);
  const Recorded outer = r.begin(tp, "host value", 8, Kind::blocking);
  EXPECT_EQ(r.begin(0, "MPI_Allgather", 0, Kind::blocking).sequence, 0u);
  r.end({});
  EXPECT_EQ(r.snapshot().waits_for.sequence, outer.sequence);
  r.end(outer);
  EXPECT_EQ(r.snapshot().records.size(), 1u);
  EXPECT_EQ(r.begin(-1, "all_reduce", 1, Kind::blocking).sequence, 0u);
}

TEST(FlightRecorder, KeepsTheLastOperations) {
  FlightRecorder r;
  r.turn(true);
  const int g = r.group("tp group 0", {0, 1});
  const Recorded first = r.begin(g, "first", 0, Kind::started);
  for (std::uint64_t i = 2; i <= 1000; ++i) r.end(r.begin(g, "all_reduce", i, Kind::blocking));
  r.wait_for(first, "wait");  // of an operation that left the ring
  FlightSnapshot s = r.snapshot();
  EXPECT_STREQ(s.waits_in, "wait");
  EXPECT_EQ(s.waits_for.sequence, 1u);
  r.end(first);
  s = r.snapshot();
  ASSERT_EQ(s.records.size(), FlightRecorder::ring_size);
  EXPECT_EQ(s.records.front().sequence, 1001 - FlightRecorder::ring_size);
  EXPECT_EQ(s.records.back().sequence, 1000u);
  EXPECT_EQ(s.records.back().bytes, 1000u);
}

TEST(FlightRecorder, TheHostDoesNotWaitForWhatADeviceQueues) {
  FlightRecorder r;
  r.turn(true);
  const int g = r.group("tp group 0", {0, 1});
  const Recorded queued = r.begin(g, "all_reduce", 4, Kind::queued);
  r.wait_for(queued, "wait");
  EXPECT_EQ(r.snapshot().waits_for.sequence, 0u);
  r.end(queued);
  EXPECT_EQ(r.snapshot().records[0].end, OperationRecord::queued);
}

TEST(FlightRecorder, SeesTheRegionsOfTimers) {
  Timers timers;
  const std::size_t outside = flight_recorder().snapshot().regions.size();
  const std::uint64_t before = flight_recorder().events();
  {
    const Region region(timers, "checkpoint");
    EXPECT_STREQ(flight_recorder().snapshot().regions.back(), "checkpoint");
    const NotedRegion inner("fsync");
    EXPECT_STREQ(flight_recorder().snapshot().place.phase, "fsync");
  }
  EXPECT_EQ(flight_recorder().snapshot().regions.size(), outside);
  EXPECT_EQ(flight_recorder().events(), before + 4);
}

// Ranks 0 and 1 as two recorders. The proofs of what both did alike add up to 0, in the upper bits too.
class TwoRanks {
 public:
  TwoRanks() {
    for (int r = 0; r < 2; ++r) {
      ranks_[r].turn(true);
      for (const char* name : {"tp group 0", "dp group 0"}) {
        EXPECT_GT(ranks_[r].group(name, {0, 1}), 0);
        ranks_[r].compare(ranks_[r].group(name, {0, 1}), r);
      }
    }
  }
  void enter(int rank, int group, std::uint64_t alike) {
    ranks_[rank].end(ranks_[rank].begin(group, "all_reduce", 64, Kind::blocking, alike));
  }
  void both_enter(int group, std::uint64_t alike) {
    for (const int r : {0, 1}) enter(r, group, alike);
  }
  bool agree() { return (ranks_[0].take_proof() + ranks_[1].take_proof()) << 3 == 0; }
  FlightRecorder& operator[](int rank) { return ranks_[rank]; }

 private:
  FlightRecorder ranks_[2];
};

TEST(FlightRecorder, ProvesThatRanksDoTheSame) {
  TwoRanks ranks;
  EXPECT_TRUE(ranks.agree());
  for (int i = 0; i < 1000; ++i) ranks.both_enter(1 + i % 2, 100 + static_cast<std::uint64_t>(i) % 7);
  EXPECT_TRUE(ranks.agree());
  ranks.enter(0, 1, 0);  // not compared
  EXPECT_TRUE(ranks.agree());
  ranks.enter(0, 1, 100);
  EXPECT_FALSE(ranks.agree());
  ranks.enter(1, 1, 100);
  EXPECT_TRUE(ranks.agree());
}

TEST(FlightRecorder, SeesOtherOrdersAndGroups) {
  TwoRanks order;
  order.enter(0, 1, 100), order.enter(0, 1, 101);
  order.enter(1, 1, 101), order.enter(1, 1, 100);
  EXPECT_FALSE(order.agree());
  TwoRanks group;
  group.enter(0, 1, 100), group.enter(1, 2, 100);
  EXPECT_FALSE(group.agree());
  TwoRanks mirrored;  // would cancel if the groups had no hashes of their own
  mirrored.enter(0, 1, 100), mirrored.enter(1, 1, 101);
  mirrored.enter(0, 2, 101), mirrored.enter(1, 2, 100);
  EXPECT_FALSE(mirrored.agree());
}

TEST(FlightRecorder, KnowsWhetherAStepIsAsTheOneBefore) {
  TwoRanks ranks;
  const auto step = [&](std::int64_t number, std::uint64_t alike) {
    ranks[0].begin_step(number);
    ranks.enter(0, 1, 100);
    ranks.enter(0, 1, alike);
    ranks[0].take_proof();
    const bool first = ranks[0].snapshot().groups[1].is_as_before;
    ranks.enter(0, 1, number);  // after the proof: of a validation, say
    return first;
  };
  step(1, 7);
  EXPECT_TRUE(step(2, 7));
  EXPECT_TRUE(step(3, 7));
  EXPECT_FALSE(step(4, 8));
  EXPECT_TRUE(ranks[0].snapshot().groups[2].is_as_before);
  EXPECT_TRUE(ranks[0].snapshot().groups[2].is_compared);
  EXPECT_FALSE(ranks[0].snapshot().groups[0].is_compared);
}

TEST(FlightRecorder, TheFirstStepIsNotTheLongest) {
  FlightRecorder r;
  for (const std::int64_t ns : {900, 30, 50, 40}) r.step_done(ns);
  EXPECT_EQ(r.snapshot().longest_step, 50);
  EXPECT_EQ(r.steps_done(), 4);
}

// A job that was suspended for hours is not watched with the patience of hours.
TEST(FlightRecorder, TimeInWhichTheProcessWasStoppedIsNotTheSteps) {
  FlightRecorder r;
  r.step_done(10);
  r.was_stopped(5000);  // between two steps
  r.begin_step(2);
  r.was_stopped(900);
  r.was_stopped(100);
  r.step_done(1030);
  EXPECT_EQ(r.snapshot().longest_step, 30);
  r.begin_step(3);
  r.step_done(40);
  EXPECT_EQ(r.snapshot().longest_step, 40);
}

// A reader beside the writer sees whole records only.
TEST(FlightRecorder, IsReadWhileItIsWritten) {
  FlightRecorder r;
  r.turn(true);
  const int g = r.group("tp group 0", {0, 1});
  std::atomic<bool> done{false};
  std::atomic<std::uint64_t> read{0};
  std::thread reader([&] {
    while (!done) {
      for (const OperationRecord& o : r.snapshot().records) {
        ++read;
        EXPECT_EQ(o.bytes, 3 * o.sequence);
        EXPECT_EQ(o.place.step, static_cast<std::int64_t>(o.sequence));
      }
    }
  });
  for (std::uint64_t i = 1; i <= 200000 || read == 0; ++i) {
    r.begin_step(static_cast<std::int64_t>(i));
    r.end(r.begin(g, "all_reduce", 3 * i, Kind::blocking));
  }
  done = true;
  reader.join();
}

}  // namespace
}  // namespace nanotron
