#pragma once

#include "nanotron/deck/checks/findings.hpp"

namespace nanotron::optim {

/// Checks the learning-rate schedule against the steps of the run.
void check_schedule(const deck::Config& config, deck::Findings& findings);

/// What an optimizer requires of precision%reproducible and precision%moments.
void check_optimizer(const deck::Config& config, deck::Findings& findings);

}  // namespace nanotron::optim
