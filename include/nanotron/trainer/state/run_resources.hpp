#pragma once

// The ranks and the device memory of a run.

#include <mpi.h>

#include <memory>
#include <optional>
#include <string>

#include "nanotron/comm/process_grid.hpp"
#include "nanotron/comm/transport/registered_memory.hpp"
#include "nanotron/deck/config.hpp"
#include "nanotron/tensor/arena.hpp"

namespace nanotron::trainer {

// The process grid of a run.

/// The grid of the deck. Collective.
comm::ProcessGrid make_grid(MPI_Comm world, const deck::Config& config);

/// "grid: dp 2 x pp 1 x cp 1 x tp 4 = 8 ranks", of a resolved deck, as a line.
std::string grid_line(const deck::Config& config);

// The device memory of a run.

/// An arena of the plan; with parallel%register_memory in memory that is registered with the grid, whose rules apply
/// (comm/transport/registered_memory.hpp). Collective, as arena_of. Error(deck_error) if memory is to be symmetric and
/// plans of ranks in one group differ.
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
