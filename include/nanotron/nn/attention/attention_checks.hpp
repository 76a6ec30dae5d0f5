#pragma once

#include "nanotron/deck/config.hpp"
#include "nanotron/deck/findings.hpp"

namespace nanotron::nn {

/// Sizes of heads, and what context parallelism asks of tokens and heads.
void check_attention(const deck::Config& config, deck::Findings& findings);

/// num_key_value_heads and head_dim that are 0.
void fill_attention(deck::Config& config);

}  // namespace nanotron::nn
