#pragma once
// Which features there are, and decks as all of them check and fill them.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "nanotron/deck/config.hpp"
#include "nanotron/deck/findings.hpp"

namespace nanotron::trainer {

/// The one list of features. A grid is proposed where the checks of all of them pass.
deck::Features deck_features();

/// deck::read_deck, deck::read_deck_text and deck::resolve with all features.
deck::Config read_deck(const std::string& path, const std::vector<std::string>& overrides = {},
                       std::string* warnings = nullptr);
deck::Config read_deck_text(const std::string& text, const std::string& file_name,
                            const std::vector<std::string>& overrides = {}, std::string* warnings = nullptr,
                            std::optional<std::int64_t> ranks = std::nullopt);
void resolve(deck::Config& config, std::int64_t world_size);

}  // namespace nanotron::trainer
