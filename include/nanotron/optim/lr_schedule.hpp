#pragma once

// The learning rate as a pure function of the step: nothing to save, nothing to restore.
//
// With s = 0, 1, ... the update's index, w warm-up steps, k decay steps and r = min_lr_ratio:
//
//   s < w           lr (s + 1) / w
//   constant        lr
//   inverse-sqrt    lr sqrt(max(w, 1) / (s + 1))                    (Vaswani et al. 2017)
//   otherwise       lr (r + (1 - r) f(p)),  p = (s - b) / k clamped to [0, 1]
//     linear        f = 1 - p
//     cosine        f = (1 + cos(pi p)) / 2                         (Loshchilov & Hutter 2017)
//     1-sqrt        f = 1 - sqrt(p)                                 (Hägele et al. 2024)
//     wsd           decay_shape's f, with b = steps - k             (Hu et al. 2024)
//
// b = w except for wsd. decay_steps = 0 means all steps after warm-up (wsd: a tenth of all steps).

#include <cstdint>

#include "nanotron/deck/config.hpp"

namespace nanotron::optim {

class LrSchedule {
 public:
  /// learning_rate is lr above, steps the length of the whole run (run%steps).
  LrSchedule(const deck::ScheduleConfig& schedule, double learning_rate, std::int64_t steps);
  /// The rate of update number `step`, from 0. A pure function.
  double operator()(std::int64_t step) const;

 private:
  double decayed(deck::DecayShape shape, std::int64_t begin, std::int64_t step) const;

  deck::ScheduleConfig schedule_;
  double learning_rate_;
  std::int64_t steps_;
  std::int64_t decay_steps_;
};

}  // namespace nanotron::optim
