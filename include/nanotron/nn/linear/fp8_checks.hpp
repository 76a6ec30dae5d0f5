#pragma once

#include "nanotron/deck/checks/findings.hpp"
#include "nanotron/deck/config_forward.hpp"

namespace nanotron::nn {

/// Checks precision%compute = 'fp8' against what FP8 GEMMs cannot do.
void check_fp8(const deck::Config& config, deck::Findings& findings);

}  // namespace nanotron::nn
