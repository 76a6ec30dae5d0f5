#pragma once

#include "nanotron/deck/config.hpp"
#include "nanotron/deck/findings.hpp"

namespace nanotron::io {

/// Reports an empty checkpoint%resume.
void check_checkpoint(const deck::Config& config, deck::Findings& findings);

}  // namespace nanotron::io
