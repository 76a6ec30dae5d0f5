#pragma once

#include "nanotron/deck/config_forward.hpp"
#include "nanotron/deck/findings.hpp"

namespace nanotron::nn {

/// Learned positions or RoPE: checks sizes and scaling, and refuses keys of the other kind.
void check_positions(const deck::Config& config, deck::Findings& findings);

}  // namespace nanotron::nn
