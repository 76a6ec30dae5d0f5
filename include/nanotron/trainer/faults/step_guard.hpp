#pragma once

// Bad steps: the loss or the gradient norm is not finite, the norm is a spike, or ranks have different ones. Such a
// step has changed no state, so that it is computed again on the spot. The same results mean data or numerics; others
// mean hardware, and the rank where the two computations diverge is named (step_trace.hpp).
//
// A spike: norm > run%spike_factor x the median of the last `window` norms of updates, once min_norms are known.

#include <memory>
#include <vector>

#include "nanotron/deck/checks/findings.hpp"
#include "nanotron/trainer/faults/step_trace.hpp"
#include "nanotron/trainer/state/training_state.hpp"

namespace nanotron::trainer {

class SpikeBound {
 public:
  static constexpr std::size_t window = 64, min_norms = 8;
  explicit SpikeBound(double factor) : factor_(factor) {}

  double largest_norm() const;  // infinity: no bound yet
  void accept(double norm);
  /// The last norms, the newest at the end: part of a checkpoint, so that a resume decides the same. Empty with factor
  /// 0.
  const std::vector<double>& norms() const { return norms_; }
  void restore(const std::vector<double>& norms);

 private:
  double factor_;
  std::vector<double> norms_;
};

template <class T>
class StepGuard {
 public:
  /// All must outlive it.
  StepGuard(const deck::Config& config, comm::ProcessGrid& grid, Device& device, const TrainingState<T>& state);

  bool is_on() const { return trace_ != nullptr; }
  /// Call them around everything from the first micro-batch to the decision.
  void begin();
  void end();
  /// What was computed between them. Waits for the device.
  ComputedStep computed(const kernels::UpdateScalars& decided) const;
  /// Ends the run on every rank (end_for_hardware) unless both computations of a step are the same everywhere, and the
  /// same for all ranks. Collective over the world.
  void require_same(const ComputedStep& first, const ComputedStep& second, const kernels::UpdateScalars& decided,
                    std::int64_t step) const;

 private:
  const deck::Config& config_;
  comm::ProcessGrid& grid_;
  Device& device_;
  const TrainingState<T>& state_;
  std::unique_ptr<StepTrace> trace_;  // null: off
  std::unique_ptr<comm::WatchedGroups> watched_;
};

}  // namespace nanotron::trainer
