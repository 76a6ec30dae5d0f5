#pragma once

// The device memory of a run.

#include <memory>
#include <optional>

#include "nanotron/comm/transport/registered_memory.hpp"
#include "nanotron/tensor/arena.hpp"

namespace nanotron::trainer {

/// An arena of the plan; with parallel%register_memory in memory that is registered with the grid, whose rules hold
/// (comm/transport/registered_memory.hpp). Collective, as arena_of. Error(deck_error) where memory is to be symmetric
/// and plans of ranks in one group differ.
class RunMemory {
 public:
  RunMemory(const deck::Config& config, comm::ProcessGrid& grid, const MemoryPlan& plan);

  Arena& arena() { return arena_; }

  /// An arena of another plan, at most as large, in the same memory. Allocations of the previous plan are invalid.
  Arena& arena_of(const MemoryPlan& plan);

 private:
  comm::ProcessGrid& grid_;
  deck::MemoryRegistration how_;
  std::unique_ptr<comm::RegisteredMemory> registered_;
  Arena arena_;
  std::optional<Arena> stage_;
};

}  // namespace nanotron::trainer
