#pragma once

// The process grid of a run.

#include <mpi.h>

#include <string>

#include "nanotron/comm/process_grid.hpp"
#include "nanotron/deck/config.hpp"

namespace nanotron::trainer {

/// The grid of the deck. Collective.
comm::ProcessGrid make_grid(MPI_Comm world, const deck::Config& config);

/// "grid: dp 2 x pp 1 x cp 1 x tp 4 = 8 ranks", of a resolved deck, as a line.
std::string grid_line(const deck::Config& config);

}  // namespace nanotron::trainer
