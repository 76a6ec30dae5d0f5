#pragma once

#include "nanotron/deck/config.hpp"
#include "nanotron/deck/findings.hpp"

namespace nanotron::nn {

/// Positions, learned or rotated: sizes, scaling, and keys of the other kind.
void check_positions(const deck::Config& config, deck::Findings& findings);

}  // namespace nanotron::nn
