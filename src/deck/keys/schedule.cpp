// The keys of &schedule.
#include "nanotron/deck/keys/schedule.hpp"

#include "rows.hpp"

#define GROUP_NAME "schedule"
#define GROUP(c) (c).schedule

namespace nanotron::deck {

// clang-format off
std::vector<Parameter> schedule_rows() {
  return {
    ENUM(kind,
        {"constant", ScheduleKind::constant}, {"linear", ScheduleKind::linear},
        {"cosine", ScheduleKind::cosine}, {"1-sqrt", ScheduleKind::one_minus_sqrt},
        {"wsd", ScheduleKind::wsd}, {"inverse-sqrt", ScheduleKind::inverse_sqrt}).says(
        "Schedule of the learning rate after the warm-up."),
    KEY(warmup_steps).at_least(0).at_most(1e12).in("steps").says(
        "Warm-up steps, in which the learning rate rises linearly from learning_rate / warmup_steps to learning_rate."),
    KEY(decay_steps).at_least(0).at_most(1e12).in("steps").says(
        "Steps of the decay; 0: all after the warm-up, for 'wsd' the last tenth of the run."),
    KEY(min_lr_ratio).at_least(0).at_most(1).says(
        "Lowest learning rate of the decay divided by the peak; without effect for 'constant' and 'inverse-sqrt'."),
    ENUM(decay_shape,
        {"linear", DecayShape::linear}, {"1-sqrt", DecayShape::one_minus_sqrt}, {"cosine", DecayShape::cosine}).says(
        "Shape of the decay of 'wsd'."),
  };
}
// clang-format on

}  // namespace nanotron::deck

#undef GROUP_NAME
#undef GROUP
