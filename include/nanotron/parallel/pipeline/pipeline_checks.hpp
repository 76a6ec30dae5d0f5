#pragma once

#include "nanotron/deck/config.hpp"
#include "nanotron/deck/findings.hpp"

namespace nanotron::parallel {

/// A layer for every stage, pp_layers, and what a schedule needs.
void check_pipeline(const deck::Config& config, deck::Findings& findings);

}  // namespace nanotron::parallel
