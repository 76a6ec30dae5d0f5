#pragma once

// From a deck to a finished run: what main() calls, and the same pieces for tests and benchmarks.

#include <mpi.h>

#include <string>
#include <vector>

#include "nanotron/comm/process_grid.hpp"
#include "nanotron/data/token_file.hpp"
#include "nanotron/deck/config.hpp"

namespace nanotron::trainer {

/// How many ranks the grid is resolved for.
enum class GridRanks {
  of_world,  // as many as there are: to run
  of_deck,   // as many as the deck names, a degree of 0 counting as 1: to check or plan on one process
};

/// The deck as rank 0 reads it, given to every rank, checked, resolved and completed by what the token file
/// knows (vocab_size). Collective; every error is thrown on every rank.
deck::Config load_config(MPI_Comm world, const std::string& path,
                         const std::vector<std::string>& overrides, GridRanks ranks);

/// The grid the deck asks for. Collective.
comm::ProcessGrid make_grid(MPI_Comm world, const deck::Config& config);

/// What the deck would do, as text: grid, sizes, FLOPs, bytes of each rank.
std::string describe_plan(const deck::Config& config);

/// "grid: dp 2 x pp 1 x cp 1 x tp 4 = 8 ranks", of a resolved deck, as a line.
std::string grid_line(const deck::Config& config);

/// The data of the deck, opened and checked as train() does, as text; or that there are none here. Collective.
std::string describe_data(const deck::Config& config, MPI_Comm world);

/// Trains. config is loaded as above. Returns stopped_early when there is more to do. Collective.
ExitCode train(const deck::Config& config, MPI_Comm world, double start);

}  // namespace nanotron::trainer
