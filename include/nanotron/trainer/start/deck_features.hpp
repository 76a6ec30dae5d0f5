#pragma once

// The list of features, and reading of decks with the checks and filled-in values of all of them.

#include <mpi.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "nanotron/deck/checks/findings.hpp"
#include "nanotron/deck/config.hpp"
#include "nanotron/deck/machine.hpp"

namespace nanotron::trainer {

/// The only list of features. Only grids that pass the checks of all features are proposed.
deck::Features deck_features();

/// deck::read_deck, deck::read_deck_text and deck::resolve with all features.
deck::Config read_deck(const std::string& path, const std::vector<std::string>& overrides = {},
                       std::string* warnings = nullptr);
deck::Config read_deck_text(const std::string& text, const std::string& file_name,
                            const std::vector<std::string>& overrides = {}, std::string* warnings = nullptr,
                            std::optional<std::int64_t> ranks = std::nullopt,
                            const std::optional<std::map<std::string, std::string>>& lists = std::nullopt);
void resolve(deck::Config& config, std::int64_t world_size);

// Decks and machine files, read once for all ranks.

/// How many ranks the grid is resolved for.
enum class GridRanks {
  of_world,  // the ranks of the communicator: to run
  of_deck,   // the degrees in the deck, the smallest that fits where they are 0: to check or plan on one process
};

/// Rank 0 reads the deck and its list files and broadcasts them. Every rank checks and resolves it; vocab_size comes
/// from the token file if the deck leaves it open. planned: with GridRanks::of_deck the number of ranks, if not 0.
/// Collective; every error is thrown on every rank.
deck::Config load_config(MPI_Comm world, const std::string& path, const std::vector<std::string>& overrides,
                         GridRanks ranks, std::int64_t planned = 0);

/// The machine of a namelist file; nothing for an empty path. Collective.
std::optional<deck::Machine> load_machine(MPI_Comm world, const std::string& path);

}  // namespace nanotron::trainer
