#pragma once

#include "nanotron/deck/config.hpp"
#include "nanotron/deck/findings.hpp"

namespace nanotron::nn {

/// What a deck with experts must say, and one without must not; ep against experts and replicas.
void check_moe(const deck::Config& config, deck::Findings& findings);

/// moe_intermediate_size that is 0.
void fill_moe(deck::Config& config);

}  // namespace nanotron::nn
