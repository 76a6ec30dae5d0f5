#pragma once

#include "nanotron/deck/checks/findings.hpp"

namespace nanotron::parallel {

/// At least one layer per stage, pp_layers, and what a schedule requires.
void check_pipeline(const deck::Config& config, deck::Findings& findings);

/// What the strategy of gradient reduction requires of zero_stage, zero_size, the grid and precision.
void check_reducers(const deck::Config& config, deck::Findings& findings);

}  // namespace nanotron::parallel
