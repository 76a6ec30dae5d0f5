#include "nanotron/parallel/pipeline/pipeline_schedule.hpp"

#include <gtest/gtest.h>

#include <map>
#include <set>

namespace nanotron::parallel {
namespace {

using deck::PpSchedule;

struct Case {
  PpSchedule kind;
  int virtual_stages;
};
const std::vector<Case> cases{{PpSchedule::gpipe, 1},
                              {PpSchedule::one_f_one_b, 1},
                              {PpSchedule::interleaved_1f1b, 2},
                              {PpSchedule::interleaved_1f1b, 3},
                              {PpSchedule::zero_bubble, 2}};

index_t bubble_time(const PipelineSchedule& s) {
  const Timeline t = simulate(s);
  return t.length - t.work;
}

// Activations of virtual stages at once, at most.
index_t max_alive(const std::vector<Action>& actions) {
  index_t alive = 0, most = 0;
  for (const Action& a : actions) {
    alive += a.work == Work::forward ? 1 : a.work == Work::backward || a.work == Work::backward_weight ? -1 : 0;
    most = std::max(most, alive);
  }
  return most;
}

// Each virtual stage's work on each micro-batch once, in ascending order, forward before backward before weights.
void expect_complete(const PipelineSchedule& s) {
  for (const auto& actions : s.actions) {
    std::map<std::pair<Work, index_t>, index_t> next;
    for (const Action& a : actions) {
      EXPECT_EQ(a.micro_batch, (next[{a.work, a.virtual_stage}]++));
      if (a.work == Work::backward_weight) {
        EXPECT_LT(a.micro_batch, (next[{Work::backward_input, a.virtual_stage}]));
      } else if (a.work != Work::forward) {
        EXPECT_LT(a.micro_batch, (next[{Work::forward, a.virtual_stage}]));
      }
    }
    for (index_t c = 0; c < s.virtual_stages; ++c) {
      EXPECT_EQ((next[{Work::forward, c}]), s.micro_batches);
      EXPECT_EQ((next[{Work::backward, c}]) + (next[{Work::backward_input, c}]), s.micro_batches);
      EXPECT_EQ((next[{Work::backward_input, c}]), (next[{Work::backward_weight, c}]));
    }
  }
}

TEST(PipelineSchedule, EveryShapeIsCompleteAndEnds) {
  for (const Case& c : cases) {
    for (const int ranks : {1, 2, 3, 4, 5, 7, 8, 16}) {
      for (index_t m = 1; m <= 2 * ranks + 3; ++m) {
        SCOPED_TRACE(testing::Message() << static_cast<int>(c.kind) << " ranks " << ranks << " micro-batches " << m);
        const PipelineSchedule s = make_schedule(c.kind, ranks, c.virtual_stages, m);
        expect_complete(s);
        EXPECT_GE(simulate(s).length, simulate(s).work);
      }
    }
  }
}

// What a rank sends in one lane to one neighbour, and what that neighbour expects from it, have one order.
TEST(PipelineSchedule, NeighboursAgreeOnTheOrderOfMessages) {
  for (const Case& c : cases) {
    for (const int ranks : {2, 3, 4, 6}) {
      for (const index_t m : {1, 3, 6, 13}) {
        const PipelineSchedule s = make_schedule(c.kind, ranks, c.virtual_stages, m);
        using Message = std::pair<int, index_t>;  // receiving stage and micro-batch
        std::map<std::tuple<bool, int, int, bool>, std::vector<Message>> sent, expected;
        for (int rank = 0; rank < ranks; ++rank) {
          for (const Action& a : s.actions[static_cast<std::size_t>(rank)]) {
            if (a.work == Work::backward_weight) continue;
            const bool forward = a.work == Work::forward;
            const int stage = s.stage_of(rank, a.virtual_stage), step = forward ? 1 : -1;
            const int to = stage + step, from = stage - step;
            const auto key = [&](int sender, int receiver, int of, int towards) {
              return std::tuple(forward, sender, receiver, s.placement == Placement::loop && towards > of);
            };
            if (to >= 0 && to < s.stages() && s.location_of(to).rank != rank) {
              sent[key(rank, s.location_of(to).rank, stage, to)].push_back({to, a.micro_batch});
            }
            if (from >= 0 && from < s.stages() && s.location_of(from).rank != rank) {
              expected[key(s.location_of(from).rank, rank, from, stage)].push_back({stage, a.micro_batch});
            }
          }
        }
        EXPECT_EQ(sent, expected) << static_cast<int>(c.kind) << " ranks " << ranks << " micro-batches " << m;
      }
    }
  }
}

TEST(PipelineSchedule, StagesAndLocationsAreInverse) {
  for (const Case& c : cases) {
    const PipelineSchedule s = make_schedule(c.kind, 4, c.virtual_stages, 4);
    std::set<int> stages;
    for (int stage = 0; stage < s.stages(); ++stage) {
      const StageLocation location = s.location_of(stage);
      EXPECT_EQ(s.stage_of(location.rank, location.virtual_stage), stage);
      stages.insert(stage);
    }
    EXPECT_EQ(stages.size(), static_cast<std::size_t>(4 * c.virtual_stages));
  }
}

TEST(PipelineSchedule, OneForwardOneBackwardKeepsAtMostAsManyMicroBatchesAsRanks) {
  for (const int ranks : {2, 4, 8}) {
    for (const index_t m : {index_t{3}, index_t{8}, index_t{40}}) {
      const PipelineSchedule s = make_schedule(PpSchedule::one_f_one_b, ranks, 1, m);
      for (int rank = 0; rank < ranks; ++rank) {
        const auto& actions = s.actions[static_cast<std::size_t>(rank)];
        const index_t least = std::min<index_t>(ranks - rank, m);
        EXPECT_EQ(max_alive(actions), least);
        EXPECT_EQ(assign_slots(actions, 1).of_stage[0], least);
      }
      EXPECT_EQ(assign_slots(make_schedule(PpSchedule::gpipe, ranks, 1, m).actions[0], 1).of_stage[0], m);
    }
  }
}

// Units of a virtual stage's forward: those of 1F1B are twice as long, its virtual stages being twice as deep.
TEST(PipelineSchedule, ZeroBubbleHasLessThanAThirdOfTheBubble) {
  for (const int ranks : {2, 3, 4, 6, 8, 16}) {
    for (const index_t m : {index_t{ranks}, index_t{2 * ranks}, index_t{4 * ranks}, index_t{4 * ranks + 1}}) {
      const PipelineSchedule zero = make_schedule(PpSchedule::zero_bubble, ranks, 2, m);
      const index_t plain = 2 * bubble_time(make_schedule(PpSchedule::one_f_one_b, ranks, 1, m));
      EXPECT_LT(3 * bubble_time(zero), plain) << ranks << " ranks, " << m << " micro-batches";
      for (const auto& actions : zero.actions) EXPECT_LE(max_alive(actions), 2 * ranks);
    }
  }
}

TEST(PipelineSchedule, BubblesAreThoseOfTheLiterature) {
  for (const index_t m : {4, 8, 12}) {
    EXPECT_EQ(bubble_time(make_schedule(PpSchedule::gpipe, 4, 1, m)), 9);  // (ranks - 1)(forward + backward)
    EXPECT_EQ(bubble_time(make_schedule(PpSchedule::one_f_one_b, 4, 1, m)), 9);
    EXPECT_EQ(bubble_time(make_schedule(PpSchedule::interleaved_1f1b, 4, 2, m)), 9);  // of virtual stages half as deep
  }
}

TEST(PipelineSchedule, ASlotIsHeldByOneMicroBatchAtATime) {
  for (const Case& c : cases) {
    const PipelineSchedule s = make_schedule(c.kind, 4, c.virtual_stages, 9);
    for (const auto& actions : s.actions) {
      const Slots slots = assign_slots(actions, s.virtual_stages);
      std::map<std::pair<index_t, index_t>, index_t> holds;  // by virtual stage and slot
      for (std::size_t i = 0; i < actions.size(); ++i) {
        const Action& a = actions[i];
        const std::pair at{a.virtual_stage, slots.of_action[i]};
        EXPECT_LT(at.second, slots.of_stage[static_cast<std::size_t>(a.virtual_stage)]);
        if (a.work == Work::forward) {
          EXPECT_FALSE(holds.contains(at));
          holds[at] = a.micro_batch;
        }
        EXPECT_EQ(holds.at(at), a.micro_batch);
        if (a.work == Work::backward || a.work == Work::backward_weight) holds.erase(at);
      }
      EXPECT_TRUE(holds.empty());
    }
  }
}

TEST(PipelineSchedule, ListsThatWaitForEachOtherAreRefused) {
  PipelineSchedule s = make_schedule(PpSchedule::one_f_one_b, 2, 1, 2);
  s.actions[0] = {{Work::backward, 0, 0}, {Work::forward, 0, 0}, {Work::forward, 0, 1}, {Work::backward, 0, 1}};
  EXPECT_ANY_THROW(simulate(s));
}

TEST(PipelineSchedule, TheChartShowsWhoDoesWhatWhen) {
  EXPECT_EQ(chart(make_schedule(PpSchedule::one_f_one_b, 2, 1, 2), 100),
            "    0 |F0 F1       B0---    B1--- |\n"
            "    1 |   F0 B0--- F1 B1---       |\n");
}

}  // namespace
}  // namespace nanotron::parallel
