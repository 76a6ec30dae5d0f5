#pragma once

// Pipeline schedules: for each rank the list of its actions, in order. A schedule is data: it is printed, checked and
// timed before anything runs, and Pipeline (parallel/pipeline/pipeline.hpp) only executes it. On p ranks:
//
//   gpipe              all forwards, then all backwards  (Huang et al. 2019)
//   1f1b               the fewest micro-batches in flight that keep all stages busy  (Narayanan et al. 2019)
//   interleaved_1f1b   several virtual stages per rank, stage s on rank s mod p  (Narayanan et al. 2021)
//   zero_bubble        two virtual stages per rank in a V: rank 0 has the first and the last stage. Backward is split
//                      into input and weight gradients; weight gradients fill the bubbles. A greedy simulation finds
//                      the lists  (Qi et al. 2023; ZB-V of Qi et al. 2024, "Pipeline Parallelism with Controllable
//                      Memory")
//
// Stages are numbered in the order in which a micro-batch passes them.

#include <string>
#include <vector>

#include "nanotron/base/types.hpp"
#include "nanotron/deck/keys/parallel.hpp"

namespace nanotron::parallel {

enum class Work { forward, backward, backward_input, backward_weight };  // backward: input and weight gradients

/// Whether it computes the gradient of a virtual stage's input.
inline bool is_gradient(Work work) { return work == Work::backward || work == Work::backward_input; }

struct Action {
  Work work;
  index_t virtual_stage;  // local to the rank, 0 for its first stage
  index_t micro_batch;
  friend bool operator==(const Action&, const Action&) = default;
};

/// Where a stage is: its rank and its virtual stage there.
struct StageLocation {
  int rank;
  index_t virtual_stage;
};

/// Which stages a rank has, of p = ranks.
enum class Placement {
  loop,  // stage s: rank s mod p, virtual stage s / p
  vee,   // stage s < p: rank s, virtual stage 0; else rank 2p - 1 - s, virtual stage 1
};

struct PipelineSchedule {
  int ranks = 1;
  int virtual_stages = 1;  // per rank
  Placement placement = Placement::loop;
  index_t micro_batches = 0;
  std::vector<std::vector<Action>> actions;  // by rank

  int stages() const { return ranks * virtual_stages; }
  StageLocation location_of(int stage) const;
  int stage_of(int rank, index_t virtual_stage) const;
};

/// Whether the backward of a layer is two actions: of its input, and later of its weights.
bool splits_backward(const deck::ParallelConfig& config);

/// virtual_stages: per rank; 1 for gpipe and 1f1b, 2 for zero_bubble. Every virtual stage takes the micro-batches in
/// ascending order, in forward and in backward.
PipelineSchedule make_schedule(deck::PpSchedule kind, int ranks, int virtual_stages, index_t micro_batches);

/// of_action: the slot that stores the activations of the action's micro-batch, from its forward to the end of its
/// backward. of_stage: slots that each virtual stage needs.
struct Slots {
  std::vector<index_t> of_action;
  std::vector<index_t> of_stage;
};
Slots assign_slots(const std::vector<Action>& actions, int virtual_stages);

/// When each action runs, in units of time: forward, backward_input and backward_weight take 1, backward 2, messages 0.
struct Timeline {
  std::vector<std::vector<index_t>> begin;  // by rank and action
  index_t length = 0;                       // of the step
  index_t work = 0;                         // of the busiest rank

  /// Share of the step in which the busiest rank waits.
  double bubble() const { return 1.0 - static_cast<double>(work) / static_cast<double>(length); }
};
/// Error(system_error) when the schedule deadlocks.
Timeline simulate(const PipelineSchedule& schedule);

/// One line per rank, one column per unit of time: "F3" is the forward of micro-batch 3, "B" backward, "I" and "W" its
/// input and weight parts; a letter after the number is the virtual stage ("F3b"). At most max_columns units are drawn.
std::string chart(const PipelineSchedule& schedule, index_t max_columns);

}  // namespace nanotron::parallel
