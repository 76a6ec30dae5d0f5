#pragma once

// Decks as a run reads them: with the checks of all layers, and for a number of ranks.

#include "nanotron/trainer/start/deck_features.hpp"
#include "support/small_deck.hpp"

namespace nanotron::test {

inline const DeckReader decks{
    [](const std::string& text, const Settings& set) { return trainer::read_deck_text(text, "t.deck", set); },
    [](deck::Config& c, int ranks) { trainer::resolve(c, ranks); }};

}  // namespace nanotron::test
