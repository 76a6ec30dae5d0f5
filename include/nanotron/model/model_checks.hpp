#pragma once

#include "nanotron/deck/config.hpp"
#include "nanotron/deck/findings.hpp"

namespace nanotron::model {

/// What model%parametrization needs.
void check_parametrization(const deck::Config& config, deck::Findings& findings);

/// Whether sizes can be computed with: beyond 1e15 parameters or activations the arithmetic would overflow.
void check_size(const deck::Config& config, deck::Findings& findings);

}  // namespace nanotron::model
