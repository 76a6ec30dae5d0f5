#pragma once

#include "nanotron/deck/checks/findings.hpp"
#include "nanotron/deck/config_forward.hpp"

namespace nanotron::parallel {

/// zero_size against zero_stage, dp x cp and experts.
void check_zero(const deck::Config& config, deck::Findings& findings);

}  // namespace nanotron::parallel
