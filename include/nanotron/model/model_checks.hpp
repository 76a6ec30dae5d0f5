#pragma once

#include "nanotron/deck/checks/findings.hpp"

namespace nanotron::model {

/// Errors beyond 1e15 parameters or activations, where index arithmetic would overflow.
void check_size(const deck::Config& config, deck::Findings& findings);

}  // namespace nanotron::model
