#include "nanotron/optim/lr_schedule.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

#include "nanotron/base/elementary/circular.hpp"
#include "nanotron/deck/config.hpp"

namespace nanotron::optim {
namespace {

using namespace deck::phrases;

std::int64_t default_decay_steps(const deck::ScheduleConfig& schedule, std::int64_t steps) {
  if (schedule.decay_steps > 0) return schedule.decay_steps;
  if (schedule.kind == deck::ScheduleKind::wsd) return std::max<std::int64_t>(1, steps / 10);
  return std::max<std::int64_t>(1, steps - schedule.warmup_steps);
}

double remaining(deck::DecayShape shape, double progress) {
  switch (shape) {
    case deck::DecayShape::linear:
      return 1.0 - progress;
    case deck::DecayShape::cosine:
      return 0.5 * (1.0 + cosine(std::numbers::pi * progress));
    case deck::DecayShape::one_minus_sqrt:
      return 1.0 - std::sqrt(progress);
  }
  return 0.0;
}

/// Hint for users who lower run%steps to try a deck or to split a run into jobs.
std::string stop_early(const deck::Config& c) {
  return "run%steps sets the length of the learning-rate schedule; to stop after " + text(c.run.steps) +
         (c.run.steps == 1 ? " step" : " steps") +
         " of the whole run leave it and give --set run.stop_after_steps=" + text(c.run.steps);
}

}  // namespace

void check_schedule(const deck::Config& c, deck::Findings& f) {
  if (f.is_valid({"schedule.warmup_steps", "run.steps"}) && c.schedule.warmup_steps > c.run.steps) {
    f.error({"schedule.warmup_steps"},
            "warmup_steps = " + text(c.schedule.warmup_steps) + " is more than the " + text(c.run.steps) +
                " steps of the run",
            "at most " + text(c.run.steps), stop_early(c));
  } else if (c.schedule.kind == deck::ScheduleKind::wsd &&  // its decay ends with the run; other decays may stop early
             f.is_valid({"schedule.decay_steps", "schedule.warmup_steps", "run.steps"}) &&
             c.schedule.warmup_steps + c.schedule.decay_steps > c.run.steps) {
    f.error({"schedule.decay_steps"},
            "warmup_steps + decay_steps = " + text(c.schedule.warmup_steps + c.schedule.decay_steps) +
                " is more than the " + text(c.run.steps) + " steps of the run",
            "decay_steps <= " + text(c.run.steps - c.schedule.warmup_steps), stop_early(c));
  }
}

LrSchedule::LrSchedule(const deck::ScheduleConfig& schedule, double learning_rate, std::int64_t steps)
    : schedule_(schedule),
      learning_rate_(learning_rate),
      steps_(steps),
      decay_steps_(default_decay_steps(schedule, steps)) {}

double LrSchedule::decayed(deck::DecayShape shape, std::int64_t begin, std::int64_t step) const {
  const double progress = std::clamp(static_cast<double>(step - begin) / static_cast<double>(decay_steps_), 0.0, 1.0);
  const double floor = schedule_.min_lr_ratio;
  return learning_rate_ * (floor + (1.0 - floor) * remaining(shape, progress));
}

double LrSchedule::operator()(std::int64_t step) const {
  const std::int64_t warmup = schedule_.warmup_steps;
  if (step < warmup) {
    return learning_rate_ * static_cast<double>(step + 1) / static_cast<double>(warmup);
  }
  switch (schedule_.kind) {
    case deck::ScheduleKind::constant:
      return learning_rate_;
    case deck::ScheduleKind::inverse_sqrt:
      return learning_rate_ *
             std::sqrt(static_cast<double>(std::max<std::int64_t>(warmup, 1)) / static_cast<double>(step + 1));
    case deck::ScheduleKind::linear:
      return decayed(deck::DecayShape::linear, warmup, step);
    case deck::ScheduleKind::cosine:
      return decayed(deck::DecayShape::cosine, warmup, step);
    case deck::ScheduleKind::one_minus_sqrt:
      return decayed(deck::DecayShape::one_minus_sqrt, warmup, step);
    case deck::ScheduleKind::wsd:
      return decayed(schedule_.decay_shape, steps_ - decay_steps_, step);
  }
  return learning_rate_;
}

}  // namespace nanotron::optim
