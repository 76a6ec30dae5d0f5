#pragma once

#include "nanotron/deck/config.hpp"
#include "nanotron/deck/findings.hpp"

namespace nanotron::data {

/// Paths of training and validation data, and documents.
void check_data(const deck::Config& config, deck::Findings& findings);

/// global_batch_size against micro_batch_size * dp, dp counting as 1 while it is 0.
void check_batch(const deck::Config& config, deck::Findings& findings);

}  // namespace nanotron::data
