#pragma once

// The learning rate as a pure function of the step: nothing to save, nothing to restore.
//
// With step = 0, 1, ... the update's index, warmup = warmup_steps and r = min_lr_ratio:
//
//   step < warmup   lr (step + 1) / warmup
//   constant        lr
//   inverse-sqrt    lr sqrt(max(warmup, 1) / (step + 1))            (Vaswani et al. 2017)
//   otherwise       lr (r + (1 - r) f(p)),  p = (step - begin) / decay_steps clamped to [0, 1]
//     linear        f = 1 - p
//     cosine        f = (1 + cos(pi p)) / 2                         (Loshchilov & Hutter 2017)
//     1-sqrt        f = 1 - sqrt(p)                                 (Hägele et al. 2024)
//     wsd           f of decay_shape                                (Hu et al. 2024)
//
// begin = warmup, for wsd steps - decay_steps. decay_steps = 0 means all steps after warm-up (wsd: a tenth of all).

#include <cstdint>

#include "nanotron/deck/checks/findings.hpp"
#include "nanotron/deck/keys/schedule.hpp"

namespace nanotron::optim {

class LrSchedule {
 public:
  /// learning_rate is lr above, steps the length of the whole run (run%steps).
  LrSchedule(const deck::ScheduleConfig& schedule, double learning_rate, std::int64_t steps);
  /// The learning rate of update `step`, counted from 0. A pure function.
  double operator()(std::int64_t step) const;

 private:
  double decayed(deck::DecayShape shape, std::int64_t begin, std::int64_t step) const;

  deck::ScheduleConfig schedule_;
  double learning_rate_;
  std::int64_t steps_;
  std::int64_t decay_steps_;
};

/// Checks the learning-rate schedule against the steps of the run.
void check_schedule(const deck::Config& config, deck::Findings& findings);

}  // namespace nanotron::optim
