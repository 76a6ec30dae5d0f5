#pragma once

#include "nanotron/deck/checks/findings.hpp"
#include "nanotron/deck/config_forward.hpp"

namespace nanotron::comm {

/// Error unless parallel%order names each axis of the grid once, and where copy engines have no symmetric memory.
void check_grid(const deck::Config& config, deck::Findings& findings);

}  // namespace nanotron::comm
