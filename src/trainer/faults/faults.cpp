#include "nanotron/trainer/faults/faults.hpp"

#include <fmt/format.h>

#include "nanotron/base/types.hpp"
#include "nanotron/comm/collectives.hpp"
#include "nanotron/deck/config.hpp"

namespace nanotron::trainer {
namespace {

constexpr double no_update = -1.0;  // no norm is below zero

}  // namespace

template <class T>
Faults<T>::Faults(const deck::Config& config, comm::ProcessGrid& grid, Device& device, TrainingState<T>& state,
                  Log& log)
    : grid_(grid),
      device_(device),
      state_(state),
      log_(log),
      replicas_(config, grid, device, state),
      guard_(config, grid, device, state),
      memory_(config, grid, device, state),
      spikes_(config.run.spike_factor),
      stragglers_(config.run.check_stragglers_every, device.timers(), grid, log) {}

template <class T>
void Faults<T>::before_forward() {
  guard_.begin();
}

template <class T>
double Faults<T>::largest_norm() const {
  return first_ ? no_update : spikes_.largest_norm();
}

template <class T>
void Faults<T>::before_update() {
  guard_.end();
  memory_.require_unchanged();
  memory_.forget();
}

template <class T>
bool Faults<T>::computes_again(const StepResult& step, index_t targets) {
  if (step.updated) return false;
  const kernels::UpdateScalars& decided = state_.decision.read(device_);
  if (first_) {
    guard_.require_same(*first_, guard_.computed(decided), decided, step.step);
    first_.reset();
    require_equal_replicas(step.step - 1);
    return false;
  }
  // First: operations that differ would be reported as a bad step.
  comm::max_and_check_call_order(grid_.world(), 0);
  if (!guard_.is_on() || targets == 0) return false;
  log_.warn("step {}: loss {}, gradient norm {}{}: recomputing the step", step.step, step.loss, step.grad_norm,
            step.grad_norm > spikes_.largest_norm() ? fmt::format(", above {:.4g}", spikes_.largest_norm()) : "");
  first_ = guard_.computed(decided);
  return true;
}

template <class T>
void Faults<T>::require_equal_replicas(std::int64_t step) {
  state_.finish_update(device_);
  memory_.require_unchanged();
  replicas_.require_equal(step);
}

template <class T>
void Faults<T>::after_update(std::int64_t step) {
  if (replicas_.is_due(step)) {
    // Before: operations that differ would be reported as a memory fault.
    comm::max_and_check_call_order(grid_.world(), 0);
    require_equal_replicas(step);
  }
  if (memory_.is_due(step)) {
    state_.finish_update(device_);
    memory_.keep(step);
  }
}

template <class T>
void Faults<T>::end_resume(std::int64_t step, const std::vector<double>& norms) {
  spikes_.restore(norms);
  require_equal_replicas(step);
  if (memory_.is_due(step)) memory_.keep(step);
}

NANOTRON_INSTANTIATE_CLASS(Faults)

}  // namespace nanotron::trainer
