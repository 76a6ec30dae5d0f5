#pragma once

// A resume under another deck may continue another curve of the learning rate.

#include <cstdint>
#include <string>

#include "nanotron/deck/config_forward.hpp"

namespace nanotron::trainer {

/// What to say of the first update after `step`, where the deck of the checkpoint (the text of canonical_deck()) gives
/// it another learning rate than `config`, of the whole run; else empty, as where nothing is known of that deck.
std::string rate_jump(const std::string& deck_before, const deck::Config& config, std::int64_t step);

}  // namespace nanotron::trainer
