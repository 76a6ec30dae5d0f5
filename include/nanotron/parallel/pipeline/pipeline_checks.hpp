#pragma once

#include "nanotron/deck/checks/findings.hpp"
#include "nanotron/deck/config_forward.hpp"

namespace nanotron::parallel {

/// At least one layer per stage, pp_layers, and what a schedule requires.
void check_pipeline(const deck::Config& config, deck::Findings& findings);

}  // namespace nanotron::parallel
