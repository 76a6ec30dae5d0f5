// The timeline against closed forms: bubbles of pipeline schedules, overlap, and how kernels share a GPU.

#include <gtest/gtest.h>

#include <numeric>

#include "nanotron/base/error.hpp"
#include "nanotron/parallel/pipeline/pipeline_schedule.hpp"
#include "nanotron/simulation/timeline.hpp"

namespace nanotron::simulation {
namespace {

using comm::GroupKind;
using comm::Operation;

constexpr double forward = 1.0, backward = 2.0;  // of a whole stage

struct Backward {
  double inputs = 1.0, weights = 1.0;  // their gradients
};

// What a rank of the pipeline does: each action receives, computes and sends. `message`: seconds of one.
struct Lists {
  std::vector<WorkList> lists;
  std::vector<RankWork> works;
};

WorkList list_of(const parallel::PipelineSchedule& schedule, int rank) {
  WorkList list(EventOrder::kept);
  const auto message = [&](Operation operation, bool to_next, int lane) {
    return list.started(
        {.operation = operation, .group = GroupKind::pp, .bytes = 1.0, .to_next = to_next, .lane = lane});
  };
  const std::vector<parallel::Action>& actions = schedule.actions[static_cast<std::size_t>(rank)];
  const auto is_forward_of = [](const parallel::Action& a) { return a.work == parallel::Work::forward; };
  // A message between this action's stage and the one before (-1) or after it (1), unless that is on this rank.
  const auto message_of = [&](const parallel::Action& a, Operation operation, int side) -> std::uint64_t {
    const int stage = schedule.stage_of(rank, a.virtual_stage), other = stage + side;
    if (a.work == parallel::Work::backward_weight || other < 0 || other >= schedule.stages()) return 0;
    const int there = schedule.location_of(other).rank;
    if (there == rank) return 0;
    const bool is_loop = schedule.placement == parallel::Placement::loop;  // of two ranks each is on both sides
    return message(operation, is_loop ? side > 0 : there > rank, is_forward_of(a) ? 0 : 1);
  };
  std::vector<std::uint64_t> tickets;  // all receives are posted ahead
  for (const parallel::Action& action : actions) {
    tickets.push_back(message_of(action, Operation::receive, is_forward_of(action) ? -1 : 1));
  }
  for (std::size_t i = 0; i < actions.size(); ++i) {
    const bool is_forward = is_forward_of(actions[i]), is_whole = actions[i].work == parallel::Work::backward;
    if (tickets[i] > 0) list.waited(tickets[i]);
    const bool is_weight = actions[i].work == parallel::Work::backward_weight;
    list.open(is_forward  ? "gemm"
              : is_whole  ? "attention_backward"
              : is_weight ? "weights"
                          : "inputs",
              {.flops = is_whole ? 2.0 : 1.0});
    list.close();
    message_of(actions[i], Operation::send, is_forward ? 1 : -1);
  }
  list.add_finish();
  return list;
}

double step_of(deck::PpSchedule kind, int ranks, int virtual_stages, index_t micro_batches, double message = 0.0,
               const Backward& parts = {}) {
  const parallel::PipelineSchedule schedule = parallel::make_schedule(kind, ranks, virtual_stages, micro_batches);
  Lists all;
  all.lists.reserve(static_cast<std::size_t>(ranks));
  for (int r = 0; r < ranks; ++r) {
    all.lists.push_back(list_of(schedule, r));
    RankWork work{.list = &all.lists.back(), .kernels = {}, .launches = {}, .operations = {}};
    for (const WorkRow& row : all.lists.back().rows()) {
      const double seconds = row.kernel == "gemm"      ? forward
                             : row.kernel == "inputs"  ? parts.inputs
                             : row.kernel == "weights" ? parts.weights
                                                       : parts.inputs + parts.weights;
      work.kernels.push_back(seconds / virtual_stages);
      work.launches.push_back(1.0);
    }
    work.operations.assign(all.lists.back().operations().size(), OperationTime{message});
    all.works.push_back(work);
  }
  const std::vector<RankTimes> times = simulate(all.works, {});
  double end = 0.0;
  for (const RankTimes& t : times) end = std::max(end, t.end);
  for (const RankTimes& t : times) {
    EXPECT_NEAR(std::accumulate(t.seconds.begin(), t.seconds.end(), 0.0), end, 1e-9 * end);
  }
  return end;
}

// Bubble over work: (p - 1) / m, of v virtual stages (p - 1) / (v m).
TEST(Timeline, HasTheBubblesOfTheSchedules) {
  for (const int p : {2, 4, 8}) {
    for (const index_t m : {8, 16, 32}) {
      const double work = static_cast<double>(m) * (forward + backward), fraction = (p - 1.0) / static_cast<double>(m);
      EXPECT_NEAR(step_of(deck::PpSchedule::gpipe, p, 1, m), work * (1.0 + fraction), 1e-9);
      EXPECT_NEAR(step_of(deck::PpSchedule::one_f_one_b, p, 1, m), work * (1.0 + fraction), 1e-9);
      for (const int v : {2, 4}) {
        EXPECT_NEAR(step_of(deck::PpSchedule::interleaved_1f1b, p, v, m), work * (1.0 + fraction / v), 1e-9) << p << v;
      }
    }
  }
}

// No closed form: as long as the executor's own lists take in units of a virtual stage's forward.
TEST(Timeline, HasTheBubbleOfTheZeroBubbleLists) {
  for (const int p : {2, 3, 4, 8}) {
    for (const index_t m : {p, 2 * p, 4 * p + 1}) {
      const auto units = static_cast<double>(
          parallel::simulate(parallel::make_schedule(deck::PpSchedule::zero_bubble, p, 2, m)).length);
      EXPECT_NEAR(step_of(deck::PpSchedule::zero_bubble, p, 2, m), units * forward / 2.0, 1e-9) << p << " " << m;
    }
  }
}

// The lists are made for parts of equal time. A longer backward of the input makes other ranks wait for it in each
// micro-batch: of many, 1F1B has the smaller bubble.
TEST(Timeline, ZeroBubbleIsForEqualParts) {
  const auto bubble = [](deck::PpSchedule kind, index_t m) {
    const Backward parts{.inputs = 1.3, .weights = 0.85};
    const double work = static_cast<double>(m) * (forward + parts.inputs + parts.weights);
    const double step = step_of(kind, 4, kind == deck::PpSchedule::one_f_one_b ? 1 : 2, m, 0.0, parts);
    return 100.0 * (1.0 - work / step);
  };
  EXPECT_NEAR(bubble(deck::PpSchedule::one_f_one_b, 8), 27.3, 0.05);
  EXPECT_NEAR(bubble(deck::PpSchedule::interleaved_1f1b, 8), 15.8, 0.05);
  EXPECT_NEAR(bubble(deck::PpSchedule::zero_bubble, 8), 18.6, 0.05);
  EXPECT_NEAR(bubble(deck::PpSchedule::one_f_one_b, 32), 8.6, 0.05);
  EXPECT_NEAR(bubble(deck::PpSchedule::zero_bubble, 32), 19.5, 0.5);
}

// A message crosses p - 1 boundaries down and up before the first backward ends; later ones hide behind work.
TEST(Timeline, MessagesDelayThePipeline) {
  const double without = step_of(deck::PpSchedule::gpipe, 4, 1, 8),
               with = step_of(deck::PpSchedule::gpipe, 4, 1, 8, 0.1);
  EXPECT_NEAR(with, without + 2 * 3 * 0.1, 1e-9);
}

class OneRank : public testing::Test {
 protected:
  void kernel(const char* name, double seconds) {
    list_.open(name, {.read = seconds});
    list_.close();
    if (work_.kernels.size() < list_.rows().size()) work_.kernels.push_back(seconds);
  }
  // With one launch of the host.
  void launched(const char* name, double seconds) {
    kernel(name, seconds);
    work_.launches.resize(work_.kernels.size(), 1.0);
  }
  std::uint64_t collective(GroupKind group, double seconds, int level = 0) {
    const std::uint64_t ticket = list_.started({.operation = Operation::all_reduce, .group = group, .bytes = seconds});
    if (work_.operations.size() < list_.operations().size())
      work_.operations.push_back({.seconds = seconds, .level = level});
    return ticket;
  }
  RankTimes run(const TimelineRules& rules = {}) {
    work_.list = &list_;
    return simulate({work_}, rules).front();
  }
  static double share(const RankTimes& times, Share share) { return times.seconds[static_cast<std::size_t>(share)]; }

  WorkList list_{EventOrder::kept};
  RankWork work_;
};

TEST_F(OneRank, ACollectiveHidesBehindKernels) {
  const std::uint64_t ticket = collective(GroupKind::data, 3.0);
  kernel("gemm", 2.0);
  list_.waited(ticket);
  kernel("add", 1.0);
  const RankTimes times = run();
  EXPECT_DOUBLE_EQ(times.end, 4.0);
  EXPECT_DOUBLE_EQ(share(times, Share::data_parallel), 1.0);
  EXPECT_DOUBLE_EQ(share(times, Share::gemm), 2.0);
  EXPECT_DOUBLE_EQ(share(times, Share::kernels), 1.0);
}

TEST_F(OneRank, AHostDoesOneThingAtATime) {
  const std::uint64_t ticket = collective(GroupKind::data, 3.0);
  kernel("gemm", 2.0);
  list_.waited(ticket);
  EXPECT_DOUBLE_EQ(run({.overlaps = false}).end, 5.0);
}

TEST_F(OneRank, TensorParallelCollectivesMayBeWaitedForAtOnce) {
  const std::uint64_t ticket = collective(GroupKind::tp, 3.0);
  kernel("gemm", 2.0);
  list_.waited(ticket);
  EXPECT_DOUBLE_EQ(run({.overlaps_tensor_parallel = false}).end, 5.0);
  EXPECT_DOUBLE_EQ(run().end, 3.0);
}

// Two communicators move through one link of 1: half of it each, until the shorter transfer has ended at 4. The link
// between nodes is another one.
TEST_F(OneRank, CommunicatorsShareALink) {
  const std::uint64_t of_data = collective(GroupKind::data, 3.0, 0), of_tp = collective(GroupKind::tp, 2.0, 0);
  const std::uint64_t of_cp = collective(GroupKind::cp, 2.0, 1);
  list_.waited(of_cp);
  list_.waited(of_tp);
  list_.waited(of_data);
  const RankTimes times = run();
  EXPECT_DOUBLE_EQ(share(times, Share::context_parallel), 2.0);
  EXPECT_DOUBLE_EQ(share(times, Share::tensor_parallel), 2.0);
  EXPECT_DOUBLE_EQ(share(times, Share::data_parallel), 1.0);
  EXPECT_DOUBLE_EQ(times.end, 5.0);
}

// Copies to the host and from it go beside each other, beside collectives and beside kernels, which they do not slow.
TEST_F(OneRank, CopiesHaveLinksOfTheirOwn) {
  const std::uint64_t out = collective(GroupKind::to_host, 3.0, 2), in = collective(GroupKind::from_host, 3.0, 3);
  const std::uint64_t of_data = collective(GroupKind::data, 1.0, 0);
  list_.waited(of_data);
  kernel("gemm", 1.0);
  list_.waited(in);
  list_.waited(out);
  const RankTimes times = run({.collective_share = 0.5});
  EXPECT_DOUBLE_EQ(times.end, 3.0);
  EXPECT_DOUBLE_EQ(share(times, Share::gemm), 1.0);
  EXPECT_DOUBLE_EQ(share(times, Share::beside_collectives), 0.0);
  EXPECT_DOUBLE_EQ(share(times, Share::host_memory), 1.0);
}

// Of one communicator the second begins when the first has ended: it is no faster for it, and neither slows the other.
TEST_F(OneRank, ACommunicatorIsAQueue) {
  const std::uint64_t first = collective(GroupKind::data, 3.0);
  collective(GroupKind::data, 3.0);
  list_.waited(first);
  kernel("gemm", 1.0);
  list_.add_finish();
  const RankTimes times = run();
  EXPECT_DOUBLE_EQ(share(times, Share::data_parallel), 3.0 + 2.0);
  EXPECT_DOUBLE_EQ(times.end, 6.0);
}

// 1 s of latency leaves the link to the other: that moves alone for 1 s and at the end, and with it for 2 x 2 s.
TEST_F(OneRank, LatencyTakesNoBandwidth) {
  collective(GroupKind::data, 4.0);
  collective(GroupKind::tp, 2.0);
  work_.operations.back().latency = 1.0;
  list_.add_finish();
  EXPECT_DOUBLE_EQ(run().end, 1.0 + 4.0 + 1.0);
}

// 1 of 4 multiprocessors is taken for 3 s: these do 2.25 s of the GEMM's 4, the rest takes 1.75.
TEST_F(OneRank, KernelsBesideACollectiveAreSlower) {
  collective(GroupKind::data, 3.0);
  kernel("gemm", 4.0);
  list_.add_finish();
  EXPECT_DOUBLE_EQ(run({.collective_share = 0.25}).end, 4.75);
}

// In four pieces three of a gather's four seconds are beside the GEMM that reads it, of a scatter after it too; as much
// of it as the GEMM takes, and what these take of the multiprocessors. An all-reduce has no pieces.
TEST_F(OneRank, PiecesOfATransferHideBehindItsGemm) {
  const auto blocking = [&](Operation operation, double seconds) {
    const std::uint64_t ticket = list_.started({.operation = operation, .group = GroupKind::tp, .bytes = seconds});
    if (work_.operations.size() < list_.operations().size()) work_.operations.push_back({.seconds = seconds});
    list_.waited(ticket);
  };
  blocking(Operation::all_gather, 4.0);
  kernel("gemm", 10.0);
  kernel("gemm", 2.0);
  blocking(Operation::reduce_scatter, 4.0);
  kernel("add", 1.0);
  blocking(Operation::all_reduce, 3.0);
  EXPECT_DOUBLE_EQ(run().end, 24.0);
  EXPECT_DOUBLE_EQ(run({.tensor_parallel_pieces = 4}).end, 24.0 - 3.0 - 1.5);
  EXPECT_DOUBLE_EQ(run({.collective_share = 0.5, .tensor_parallel_pieces = 4}).end, 24.0 - 1.5 - 0.75);
}

TEST_F(OneRank, TheSlowestGpuHasSlowerGemmsAndAttention) {
  kernel("gemm", 10.0);
  kernel("attention_forward", 2.0);
  kernel("add", 1.0);
  const RankTimes times = run({.slowest = 0.25});
  EXPECT_DOUBLE_EQ(times.end, 16.0);
  EXPECT_DOUBLE_EQ(share(times, Share::gemm), 10.0);
  EXPECT_DOUBLE_EQ(share(times, Share::slowest), 3.0);
}

// The host needs 1 s for a launch: 0.25 s of kernels wait for it, and it is 2 s ahead behind a long one.
TEST_F(OneRank, KernelsWaitForTheirLaunch) {
  launched("add", 0.25);
  launched("gemm", 4.0);
  launched("add", 0.25);
  const RankTimes times = run({.launch_seconds = 1.0});
  EXPECT_DOUBLE_EQ(times.end, 1.0 + 0.25 + 0.75 + 4.0 + 0.25);
  EXPECT_DOUBLE_EQ(share(times, Share::launches), 1.75);
  EXPECT_DOUBLE_EQ(run().end, 4.5);
}

// The host launches a copy, which ends at 1.25, a collective, from 2 to 3, and a GEMM, at 3. If it waits for the
// collective, it launches the GEMM at 4 only.
TEST_F(OneRank, AHostThatWaitsLaunchesNothingBefore) {
  launched("add", 0.25);
  list_.waited(collective(GroupKind::ep, 1.0));
  launched("gemm", 2.0);
  EXPECT_DOUBLE_EQ(run({.launch_seconds = 1.0}).end, 1.25 + 1.0 + 0.75 + 2.0);
  work_.operations[0].host_waits = true;
  EXPECT_DOUBLE_EQ(run({.launch_seconds = 1.0}).end, 1.25 + 1.0 + 1.0 + 2.0);
}

TEST_F(OneRank, ExchangesOfExpertsAreWaitedForAtOnceWhereTheyDoNotOverlap) {
  const std::uint64_t ticket = collective(GroupKind::ep, 3.0);
  kernel("gemm", 2.0);
  list_.waited(ticket);
  EXPECT_DOUBLE_EQ(run().end, 3.0);
  const RankTimes times = run({.overlaps_expert_parallel = false});
  EXPECT_DOUBLE_EQ(times.end, 5.0);
  EXPECT_DOUBLE_EQ(share(times, Share::expert_parallel), 3.0);
}

// A message of 1 s beside a reduction of 1 s on the sender: both take 2. One in each direction: links out and in are
// two.
TEST(Timeline, MessagesShareTheLinksOfBothRanks) {
  const auto end_of = [](bool first_reduces, bool second_sends) {
    std::vector<WorkList> lists(2, WorkList(EventOrder::kept));
    for (int r = 0; r < 2; ++r) {
      WorkList& list = lists[static_cast<std::size_t>(r)];
      const auto message = [&](Operation operation) {
        list.started({.operation = operation, .group = GroupKind::pp, .bytes = 1.0, .to_next = r == 0, .lane = 0});
      };
      if (r == 0 && first_reduces) list.started({.group = GroupKind::data, .bytes = 1.0});
      if (r == 0 || second_sends) message(Operation::send);
      if (r == 1 || second_sends) message(Operation::receive);
      list.add_finish();
    }
    std::vector<RankWork> works;
    for (const WorkList& list : lists)
      works.push_back({&list, {}, {}, std::vector<OperationTime>(list.operations().size(), OperationTime{1.0, 1})});
    const std::vector<RankTimes> times = simulate(works, {});
    return std::max(times[0].end, times[1].end);
  };
  EXPECT_DOUBLE_EQ(end_of(false, false), 1.0);
  EXPECT_DOUBLE_EQ(end_of(true, false), 2.0);
  EXPECT_DOUBLE_EQ(end_of(false, true), 1.0);
}

TEST_F(OneRank, AMessageThatNobodySendsIsAnError) {
  list_.waited(list_.started({.operation = Operation::receive, .group = GroupKind::pp, .bytes = 1.0}));
  work_.operations.push_back({.seconds = 1.0});
  EXPECT_THROW(run(), Error);
}

}  // namespace
}  // namespace nanotron::simulation
