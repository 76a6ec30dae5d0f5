#pragma once

// Whether parameters and moments in memory stay what the last update wrote, until the next one: hashes of every tensor
// on this rank, taken after the update of a step and compared before anything of the next one is changed. A difference
// is a memory fault, or a stray write.

#include <string>
#include <vector>

#include "nanotron/comm/process_grid.hpp"
#include "nanotron/deck/checks/findings.hpp"
#include "nanotron/trainer/state/training_state.hpp"

namespace nanotron::trainer {

template <class T>
class MemoryCheck {
 public:
  /// All must outlive it. With run%check_memory_every > 0 it allocates 16 bytes per tensor and layer.
  MemoryCheck(const deck::Config& config, comm::ProcessGrid& grid, Device& device, const TrainingState<T>& state);

  bool is_due(std::int64_t step) const { return every_ > 0 && step % every_ == 0; }
  /// Call it after the update of a step; call TrainingState::finish_update() before.
  void keep(std::int64_t step);
  /// Ends the run on every rank of the world (end_for_hardware) where a tensor is not as keep() saw it. Collective;
  /// waits for the device.
  void require_unchanged();
  /// What keep() saw is changed on purpose from now on: until the next keep() there is nothing to compare.
  void forget() { kept_at_ = nothing; }

 private:
  using M = master_t<T>;
  static constexpr std::int64_t nothing = -1;
  struct Piece {
    std::string name;  // "exp_avg of model/norm/weight"
    const void* data;
    std::size_t bytes;
  };
  template <class U>
  void add(const std::string& what, const std::vector<nn::ParameterSpec>& specs, const nn::BufferLayout& layout,
           const Vector<U>& values);
  std::vector<std::uint64_t> hashes();

  const deck::Config& config_;
  comm::ProcessGrid& grid_;
  Device& device_;
  const TrainingState<T>& state_;
  std::int64_t every_, kept_at_ = nothing;
  std::vector<Piece> pieces_;
  Kokkos::View<std::uint64_t*, MemorySpace> hashes_;
  std::vector<std::uint64_t> kept_;
};

}  // namespace nanotron::trainer
