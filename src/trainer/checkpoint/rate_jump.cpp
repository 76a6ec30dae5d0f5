#include "rate_jump.hpp"

#include <fmt/format.h>

#include "nanotron/deck/changes.hpp"
#include "nanotron/deck/config.hpp"
#include "nanotron/optim/lr_schedule.hpp"

namespace nanotron::trainer {
namespace {

optim::LrSchedule rate_under(const deck::Config& config) {
  return {config.schedule, config.optimizer.learning_rate, config.run.steps};
}

}  // namespace

std::string rate_jump(const std::string& deck_before, const deck::Config& config, std::int64_t step) {
  const std::optional<deck::Config> before = deck::config_of(deck_before);
  if (!before || step == 0) return "";
  const optim::LrSchedule was = rate_under(*before), is = rate_under(config);
  if (was(step) == is(step)) return "";
  return fmt::format(
      "the learning rate jumps from {:.4g} in step {} to {:.4g} in step {}, for which the checkpoint's deck has "
      "{:.4g}: "
      "schedule, rate or run%steps are others now; with schedule%decay_steps the curve does not depend on run%steps",
      was(step - 1), step, is(step), step + 1, was(step));
}

}  // namespace nanotron::trainer
