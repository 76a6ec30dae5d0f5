#pragma once

// The predicted time of a step of a deck on a machine: this program's own list of actions (trainer::step_work), played
// on the machine (simulation/timeline.hpp).

#include <string>

#include "nanotron/deck/checks/findings.hpp"
#include "nanotron/deck/machine.hpp"
#include "nanotron/simulation/operation_time.hpp"
#include "nanotron/simulation/timeline.hpp"

namespace nanotron::simulation {

struct StepPrediction {
  double seconds = 0.0;
  Seconds shares{};             // mean over the ranks of the pipeline
  double tokens = 0.0;          // of a step
  double model_flops = 0.0;     // of a step and rank, without recomputation (model/cost.hpp)
  double hardware_flops = 0.0;  // of the GEMMs and attention that run, mean over the ranks
  int ranks = 1, nodes = 1;
  double watts = 0.0;  // of all nodes; 0: not known

  double tokens_per_second() const { return tokens / seconds; }
};

/// config is resolved. Error(deck_error) where the machine's file says too little for the grid.
StepPrediction predict_step(const deck::Config& config, const deck::Machine& machine, const Software& software = {});

/// The same from two shorter steps if micro-batches are many: a step is affine in their number once the pipeline is
/// full. For searches.
StepPrediction estimate_step(const deck::Config& config, const deck::Machine& machine, const Software& software = {});

/// As lines: shares of the timeline, speed, and node-hours and energy of the run.
std::string describe(const StepPrediction& prediction, const deck::Config& config, const deck::Machine& machine);

/// --plan --machine: predict_step and describe; a line that says what is missing where the file has no &node.
std::string describe_prediction(const deck::Config& config, const deck::Machine& machine);

// Whether a deck fits into the memory of a machine: the arena of the run (trainer::plan_step), planned for every rank
// of the pipeline.

/// Memory of the pipeline rank that needs most. limit: the search for it stops above.
double memory_bytes(const deck::Config& config, const deck::Machine& machine, double limit);

/// Whether the arena and NCCL's buffers are within machine.buffer_limit().
bool fits(const deck::Config& config, const deck::Machine& machine);

}  // namespace nanotron::simulation
