#pragma once

// The result of a training step.

#include <cstdint>
#include <string>

#include "nanotron/trainer/state/router_monitor.hpp"

namespace nanotron::trainer {

struct StepResult {
  index_t samples = 0;     // of the global batch
  double loss = 0.0;       // mean over the target tokens of the global batch
  double grad_norm = 0.0;  // before clipping
  double learning_rate = 0.0;
  std::uint64_t token_hash = 0;
  RouterNumbers router{};
  bool updated = true;       // false: a bad step (step_guard.hpp), which changed nothing
  bool rolled_back = false;  // and training went back to a checkpoint
  std::int64_t step = 0;
  index_t first_sample = 0;       // of the global batch
  index_t left_out_from = 0;      // the first sample that training leaves out with this step; else first_sample
  std::string first_nonfinite{};  // of a bad step whose numbers are not finite (first_nonfinite.hpp)
};

}  // namespace nanotron::trainer
