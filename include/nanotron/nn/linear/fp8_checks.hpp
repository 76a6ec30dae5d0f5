#pragma once

#include "nanotron/deck/config_forward.hpp"
#include "nanotron/deck/findings.hpp"

namespace nanotron::nn {

/// Checks precision%compute = 'fp8' against what FP8 GEMMs cannot do.
void check_fp8(const deck::Config& config, deck::Findings& findings);

}  // namespace nanotron::nn
