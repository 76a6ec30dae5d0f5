#pragma once

#include "nanotron/deck/config.hpp"
#include "nanotron/deck/findings.hpp"

namespace nanotron::nn {

/// tp against the extents that it shards, and keys of tp_mode = 'reduce_scatter'.
void check_tensor_parallel(const deck::Config& config, deck::Findings& findings);

}  // namespace nanotron::nn
