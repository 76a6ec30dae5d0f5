#pragma once

// What a run checks while it trains: bad steps, memory that changes without an update, ranks with different bits
// than the ranks that must hold the same, and ranks that are slow. Each has its own header.

#include <optional>

#include "nanotron/base/log.hpp"
#include "nanotron/trainer/faults/memory_check.hpp"
#include "nanotron/trainer/faults/replica_comparison.hpp"
#include "nanotron/trainer/faults/step_guard.hpp"
#include "nanotron/trainer/faults/stragglers.hpp"
#include "nanotron/trainer/state/step_result.hpp"

namespace nanotron::trainer {

/// Every function but the ones that are const is collective over the world of the grid.
template <class T>
class Faults {
 public:
  /// All must outlive it.
  Faults(const deck::Config& config, comm::ProcessGrid& grid, Device& device, TrainingState<T>& state, Log& log);

  /// Call them around everything from the first micro-batch to the decision whether to update, which allows no norm
  /// above largest_norm(). Ends the run if parameters or moments are not what the last update wrote.
  void before_forward();
  double largest_norm() const;
  void before_update();

  /// Whether the step that was read is bad and has to be computed once more, without an update: the second time its
  /// bits are compared with the first, and a hardware fault ends the run. targets: of the global batch.
  bool computes_again(const StepResult& step, index_t targets);

  /// After `step` steps, whether or not the last one updated: compares replicas and hashes memory where that is due.
  void after_update(std::int64_t step);
  /// Compares replicas now, as before a checkpoint.
  void require_equal_replicas(std::int64_t step);
  void check_stragglers(std::int64_t step) { stragglers_.check(step); }

  /// Gradient norms of the last updates, which a checkpoint keeps.
  void accept(double norm) { spikes_.accept(norm); }
  const std::vector<double>& norms() const { return spikes_.norms(); }
  /// Call them before a checkpoint overwrites the state, and after it: the state is that of `step`, with these norms.
  void begin_resume() { memory_.forget(); }
  void end_resume(std::int64_t step, const std::vector<double>& norms);

 private:
  comm::ProcessGrid& grid_;
  Device& device_;
  TrainingState<T>& state_;
  Log& log_;
  ReplicaComparison<T> replicas_;
  StepGuard<T> guard_;
  MemoryCheck<T> memory_;
  SpikeBound spikes_;
  StragglerWatch stragglers_;
  std::optional<ComputedStep> first_;  // of a bad step that is being computed again
};

}  // namespace nanotron::trainer
