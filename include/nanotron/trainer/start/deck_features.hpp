#pragma once
// The list of features, and reading of decks with the checks and filled-in values of all of them.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "nanotron/deck/checks/findings.hpp"
#include "nanotron/deck/config.hpp"

namespace nanotron::trainer {

/// The only list of features. Only grids that pass the checks of all features are proposed.
deck::Features deck_features();

/// deck::read_deck, deck::read_deck_text and deck::resolve with all features.
deck::Config read_deck(const std::string& path, const std::vector<std::string>& overrides = {},
                       std::string* warnings = nullptr);
deck::Config read_deck_text(const std::string& text, const std::string& file_name,
                            const std::vector<std::string>& overrides = {}, std::string* warnings = nullptr,
                            std::optional<std::int64_t> ranks = std::nullopt);
void resolve(deck::Config& config, std::int64_t world_size);

}  // namespace nanotron::trainer
