#include "nanotron/optim/optim_checks.hpp"

#include <string>

#include "nanotron/deck/checks/phrases.hpp"
#include "nanotron/deck/config.hpp"
#include "nanotron/tensor/layout_checks.hpp"

namespace nanotron::optim {
namespace {

using namespace deck::phrases;

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

void check_muon(const deck::Config& c, deck::Findings& f) {
  if (c.optimizer.name == deck::OptimizerName::muon) refuse_layout(c, f, "optimizer.name", "Muon", "name = 'adamw'");
}

void check_moments(const deck::Config& c, deck::Findings& f) {
  if (c.precision.moments == deck::MomentType::master || !f.is_valid({"precision.moments"})) return;
  if (c.optimizer.name != deck::OptimizerName::adamw) {
    f.error({"precision.moments", "optimizer.name"}, "moments = 'bf16' is for 'adamw', and optimizer%name is 'muon'",
            "moments = 'master' with 'muon'");
  }
  if (c.precision.compute == ScalarType::fp64) {
    f.error({"precision.moments", "precision.compute"}, "moments = 'bf16' with compute = 'fp64'",
            "compute = 'fp32', 'bf16' or 'fp8', or moments = 'master'");
  }
}

}  // namespace nanotron::optim
