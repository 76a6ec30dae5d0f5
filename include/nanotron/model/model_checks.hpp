#pragma once

#include "nanotron/deck/checks/findings.hpp"
#include "nanotron/deck/config_forward.hpp"

namespace nanotron::model {

/// Findings about model%parametrization.
void check_parametrization(const deck::Config& config, deck::Findings& findings);

/// Errors beyond 1e15 parameters or activations, where index arithmetic would overflow.
void check_size(const deck::Config& config, deck::Findings& findings);

}  // namespace nanotron::model
