#pragma once

#include "nanotron/deck/checks/findings.hpp"
#include "nanotron/deck/config_forward.hpp"

namespace nanotron::nn {

/// Learned positions or RoPE: checks sizes and scaling, and refuses keys of the other kind.
void check_positions(const deck::Config& config, deck::Findings& findings);

}  // namespace nanotron::nn
