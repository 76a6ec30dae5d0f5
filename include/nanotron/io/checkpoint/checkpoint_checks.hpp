#pragma once

#include "nanotron/deck/checks/findings.hpp"

namespace nanotron::io {

/// Reports an empty checkpoint%resume, two rules for when checkpoints are due, and copies without a folder of each
/// host.
void check_checkpoint(const deck::Config& config, deck::Findings& findings);

}  // namespace nanotron::io
