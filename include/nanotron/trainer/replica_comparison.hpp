#pragma once

// Compares, bit for bit, what ranks hold in common: weights and moments of ranks with the same piece, the weights of
// GEMMs of all data-parallel ranks, tensors that a tensor-parallel group holds whole.

#include <vector>

#include "nanotron/parallel/checks/replica_check.hpp"
#include "nanotron/trainer/training_state.hpp"

namespace nanotron::trainer {

template <class T>
class ReplicaComparison {
 public:
  /// All must outlive it.
  ReplicaComparison(const deck::Config& config, comm::ProcessGrid& grid, Device& device, const TrainingState<T>& state);

  /// By run%check_replicas_every.
  bool is_due(std::int64_t step) const { return tensor_parallel_.is_due(step); }
  /// Error(system_error) on every rank of the world when something differs anywhere. Weights must have chosen.
  /// Collective.
  void require_equal(std::int64_t step);

 private:
  using M = master_t<T>;
  struct SectionCheck {
    model::Section section;
    parallel::ReplicaCheck data, replicate;
    int shards;
  };
  void compare(SectionCheck& check, std::int64_t step);
  void compare_tensor_parallel(std::int64_t step);

  Device& device_;
  const TrainingState<T>& state_;
  std::vector<SectionCheck> sections_;
  parallel::ReplicaCheck tensor_parallel_;
};

}  // namespace nanotron::trainer
