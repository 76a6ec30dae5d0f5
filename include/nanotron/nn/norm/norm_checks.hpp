#pragma once

#include "nanotron/deck/config.hpp"
#include "nanotron/deck/findings.hpp"

namespace nanotron::nn {

/// Keys of the norm that the model does not have.
void check_norm(const deck::Config& config, deck::Findings& findings);

}  // namespace nanotron::nn
