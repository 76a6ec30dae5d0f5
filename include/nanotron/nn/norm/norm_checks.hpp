#pragma once

#include "nanotron/deck/checks/findings.hpp"
#include "nanotron/deck/config_forward.hpp"

namespace nanotron::nn {

/// Refuses keys of the norm that the model does not use.
void check_norm(const deck::Config& config, deck::Findings& findings);

}  // namespace nanotron::nn
