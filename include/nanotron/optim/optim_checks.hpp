#pragma once

#include "nanotron/deck/checks/findings.hpp"
#include "nanotron/deck/config_forward.hpp"

namespace nanotron::optim {

/// Checks the learning-rate schedule against the steps of the run.
void check_schedule(const deck::Config& config, deck::Findings& findings);

/// Refuses Muon with precision%reproducible = 'layout': its sums depend on the grid.
void check_muon(const deck::Config& config, deck::Findings& findings);

/// precision%moments = 'bf16' is for 'adamw' with master weights in fp32.
void check_moments(const deck::Config& config, deck::Findings& findings);

}  // namespace nanotron::optim
