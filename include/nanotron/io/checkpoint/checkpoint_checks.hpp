#pragma once

#include "nanotron/deck/checks/findings.hpp"
#include "nanotron/deck/config_forward.hpp"

namespace nanotron::io {

/// Reports an empty checkpoint%resume, two rules for when checkpoints are due, and copies without a folder of each
/// host.
void check_checkpoint(const deck::Config& config, deck::Findings& findings);

}  // namespace nanotron::io
