#pragma once

// Decks and machine files, read once for all ranks.

#include <mpi.h>

#include <optional>
#include <string>
#include <vector>

#include "nanotron/deck/config.hpp"
#include "nanotron/deck/machine.hpp"

namespace nanotron::trainer {

/// How many ranks the grid is resolved for.
enum class GridRanks {
  of_world,  // the ranks of the communicator: to run
  of_deck,   // the degrees in the deck, the smallest that fits where they are 0: to check or plan on one process
};

/// Rank 0 reads the deck and broadcasts it. Every rank checks and resolves it; vocab_size comes from the token file if
/// the deck leaves it open. Collective; every error is thrown on every rank.
deck::Config load_config(MPI_Comm world, const std::string& path, const std::vector<std::string>& overrides,
                         GridRanks ranks);

/// The machine of a namelist file; nothing for an empty path. Collective.
std::optional<deck::Machine> load_machine(MPI_Comm world, const std::string& path);

}  // namespace nanotron::trainer
