#pragma once

#include <string>

#include "nanotron/deck/config.hpp"

namespace nanotron::model {

// Error(deck_error) that lists every key of &model in which the deck and a checkpoint differ, if any does.
// checkpoint names the latter. initializer_range is not compared. Not collective.
void require_same_model(const deck::ModelConfig& deck, const deck::ModelConfig& saved,
                        const std::string& checkpoint);

}  // namespace nanotron::model
