#pragma once

#include "nanotron/deck/checks/findings.hpp"
#include "nanotron/deck/config_forward.hpp"

namespace nanotron::nn {

/// Checks head sizes, and that context parallelism has enough tokens and heads.
void check_attention(const deck::Config& config, deck::Findings& findings);

/// Fills in num_key_value_heads and head_dim where they are 0.
void fill_attention(deck::Config& config);

}  // namespace nanotron::nn
