#pragma once

#include "nanotron/deck/config.hpp"
#include "nanotron/deck/findings.hpp"

namespace nanotron::io {

/// checkpoint%resume says where to start from.
void check_checkpoint(const deck::Config& config, deck::Findings& findings);

}  // namespace nanotron::io
