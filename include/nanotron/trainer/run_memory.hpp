#pragma once

// The device memory of a run.

#include <memory>
#include <optional>

#include "nanotron/comm/registered_memory.hpp"
#include "nanotron/tensor/arena.hpp"

namespace nanotron::trainer {

/// An arena of the plan; with parallel%register_memory in memory that is registered with the grid, whose rules hold
/// (comm/registered_memory.hpp). Collective.
class RunMemory {
 public:
  RunMemory(const deck::Config& config, comm::ProcessGrid& grid, const MemoryPlan& plan)
      : registered_(config.parallel.register_memory != deck::MemoryRegistration::none
                        ? std::make_unique<comm::RegisteredMemory>(grid, Arena::bytes_of(plan))
                        : nullptr),
        arena_(registered_ ? Arena(plan, registered_->bytes()) : Arena(plan)) {}

  Arena& arena() { return arena_; }

  /// An arena of another plan, at most as large, in the same memory. What took memory of the one before is gone.
  Arena& arena_of(const MemoryPlan& plan) { return stage_.emplace(plan, arena_.memory()); }

 private:
  std::unique_ptr<comm::RegisteredMemory> registered_;
  Arena arena_;
  std::optional<Arena> stage_;
};

}  // namespace nanotron::trainer
