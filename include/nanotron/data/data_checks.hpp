#pragma once

#include "nanotron/deck/checks/findings.hpp"

namespace nanotron::data {

/// Paths of training and validation data; documents need a document mask.
void check_data(const deck::Config& config, deck::Findings& findings);

/// global_batch_size is a multiple of micro_batch_size * max(dp, 1).
void check_batch(const deck::Config& config, deck::Findings& findings);

}  // namespace nanotron::data
