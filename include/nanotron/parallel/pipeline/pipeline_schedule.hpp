#pragma once

// Pipeline schedules as explicit lists: what each rank does, in order. A schedule is data: it is printed, checked
// and timed before anything runs, and the pipeline (parallel/pipeline/pipeline.hpp) only works it off.
//
//   gpipe              all forwards, then all backwards              (Huang et al. 2019)
//   1f1b               as few micro-batches in flight as keep all stages busy   (Narayanan et al. 2019)
//   interleaved_1f1b   each rank has several virtual stages, stage s on rank s mod ranks  (Narayanan et al. 2021)
//   zero_bubble        two virtual stages a rank in the shape of a V, so that the rank of the first stage has the last
//   too;
//                      backward in two parts, the weight gradients fill what would be bubbles; a list is found by
//                      greedy simulation  (Qi et al. 2023; ZB-V of Qi et al. 2024, "Pipeline Parallelism with
//                      Controllable Memory")
//
// Stages are numbered in the order in which a micro-batch passes them.

#include <string>
#include <vector>

#include "nanotron/base/types.hpp"
#include "nanotron/deck/config.hpp"

namespace nanotron::parallel {

enum class Work { forward, backward, backward_input, backward_weight };  // backward: both parts at once

/// Whether it makes the gradient of a virtual stage's input.
inline bool is_gradient(Work work) { return work == Work::backward || work == Work::backward_input; }

struct Action {
  Work work;
  index_t virtual_stage;  // of the rank's virtual stages, ascending in the order of stages
  index_t micro_batch;
  friend bool operator==(const Action&, const Action&) = default;
};

/// Which rank has a stage.
struct StagePlace {
  int rank;
  index_t virtual_stage;
};

/// Which stages a rank has.
enum class Placement {
  loop,  // stage s: rank s mod ranks, virtual stage s / ranks
  vee,   // two virtual stages: s < ranks: rank s, virtual stage 0; else rank 2 ranks - 1 - s, virtual stage 1
};

struct PipelineSchedule {
  int ranks = 1;
  int virtual_stages = 1;  // a rank
  Placement placement = Placement::loop;
  index_t micro_batches = 0;
  std::vector<std::vector<Action>> actions;  // by rank

  int stages() const { return ranks * virtual_stages; }
  StagePlace place_of(int stage) const;
  int stage_of(int rank, index_t virtual_stage) const;
};

/// virtual stages: of a rank, 1 for gpipe and 1f1b, 2 for zero_bubble. Every virtual stage meets the micro-batches in
/// ascending order, forward and backward.
PipelineSchedule make_schedule(deck::PpSchedule kind, int ranks, int virtual_stages, index_t micro_batches);

/// For each action the slot that keeps the activations of its micro-batch, from its forward to the end of its
/// backward; and how many slots each virtual stage needs.
struct Slots {
  std::vector<index_t> of_action;
  std::vector<index_t> of_stage;
};
Slots assign_slots(const std::vector<Action>& actions, int virtual_stages);

/// When each action runs if a forward and each part of a backward of a virtual stage take a unit of time and messages
/// none.
struct Timeline {
  std::vector<std::vector<index_t>> begin;  // by rank and action
  index_t length = 0;                       // of the step
  index_t work = 0;                         // of the busiest rank

  /// Share of the step in which the busiest rank waits.
  double bubble() const { return 1.0 - static_cast<double>(work) / static_cast<double>(length); }
};
/// Error (system_error) when the lists wait for each other for ever.
Timeline simulate(const PipelineSchedule& schedule);

/// A line a rank, a column a unit of time: "F3" the forward of micro-batch 3, "B" backward, "I" and "W" its two
/// parts; letters behind tell virtual stages apart. At most max_columns units are drawn.
std::string chart(const PipelineSchedule& schedule, index_t max_columns);

}  // namespace nanotron::parallel
