#pragma once
// What a deck says otherwise than the one that a checkpoint was written under.

#include <optional>
#include <string>
#include <vector>

#include "nanotron/deck/table/parameters.hpp"

namespace nanotron::deck {

struct Change {
  std::string key, before, now;  // "data%sequence_length", and values as a deck spells them
  Influence influence;
};

/// What the text of canonical_deck() says; a key that it lacks is at its default. Nothing where the text is not a deck.
std::optional<Config> config_of(const std::string& text);

/// The keys with an influence on the training whose values differ; `before` is the text of canonical_deck(), a key that
/// it lacks was at its default. Empty where the text is not a deck.
std::vector<Change> changes_since(const std::string& before, const Config& config);

}  // namespace nanotron::deck
