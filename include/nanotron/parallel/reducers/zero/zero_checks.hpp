#pragma once

#include "nanotron/deck/config_forward.hpp"
#include "nanotron/deck/findings.hpp"

namespace nanotron::parallel {

/// zero_size against zero_stage, dp x cp and experts.
void check_zero(const deck::Config& config, deck::Findings& findings);

}  // namespace nanotron::parallel
