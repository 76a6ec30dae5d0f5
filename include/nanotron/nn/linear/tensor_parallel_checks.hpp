#pragma once

#include "nanotron/deck/checks/findings.hpp"
#include "nanotron/deck/config_forward.hpp"

namespace nanotron::nn {

/// Checks tp against the dimensions that it shards, and the keys of tp_mode = 'reduce_scatter'.
void check_tensor_parallel(const deck::Config& config, deck::Findings& findings);

}  // namespace nanotron::nn
