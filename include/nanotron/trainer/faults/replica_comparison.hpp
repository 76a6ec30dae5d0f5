#pragma once

// Compares, bit for bit, what several ranks hold: master weights and moments over each replicate group, compute weights
// and 1-D parameters over the data-parallel group, replicated tensors over the tensor-parallel group.

#include <vector>

#include "nanotron/parallel/checks/replica_check.hpp"
#include "nanotron/trainer/state/training_state.hpp"

namespace nanotron::trainer {

template <class T>
class ReplicaComparison {
 public:
  /// All must outlive it.
  ReplicaComparison(const deck::Config& config, comm::ProcessGrid& grid, Device& device, const TrainingState<T>& state);

  /// Whether run%check_replicas_every requires a comparison now.
  bool is_due(std::int64_t step) const { return tensor_parallel_.is_due(step); }
  /// Error(system_error) on every rank of the world when something differs anywhere; hosts of ranks with different
  /// bits than most of their group are excluded (faulty_hosts.hpp). Call TrainingState::finish_update() before.
  /// Collective.
  void require_equal(std::int64_t step);

 private:
  using M = master_t<T>;
  struct SectionCheck {
    model::Section section;
    parallel::ReplicaCheck data, replicate;
    int shards;
  };
  bool is_outvoted_alone();
  void compare_all(std::int64_t step);
  void compare(SectionCheck& check, std::int64_t step);
  void compare_tensor_parallel(std::int64_t step);

  const deck::Config& config_;
  comm::ProcessGrid& grid_;
  Device& device_;
  const TrainingState<T>& state_;
  std::vector<SectionCheck> sections_;
  parallel::ReplicaCheck tensor_parallel_;
};

}  // namespace nanotron::trainer
