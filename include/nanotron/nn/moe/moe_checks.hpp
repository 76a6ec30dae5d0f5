#pragma once

#include "nanotron/deck/checks/findings.hpp"
#include "nanotron/deck/config_forward.hpp"

namespace nanotron::nn {

/// Checks the keys of &moe, or refuses them where num_experts = 0; checks ep against num_experts and dp x cp.
void check_moe(const deck::Config& config, deck::Findings& findings);

/// Fills in moe_intermediate_size where it is 0.
void fill_moe(deck::Config& config);

}  // namespace nanotron::nn
