#pragma once

#include "nanotron/deck/checks/findings.hpp"
#include "nanotron/deck/config_forward.hpp"

namespace nanotron::parallel {

/// parallel%compression needs an all-reduce of gradients: zero_stage = 0.
void check_compression(const deck::Config& config, deck::Findings& findings);

/// Adasum needs on each data-parallel rank the whole gradient of its own samples.
void check_adasum(const deck::Config& config, deck::Findings& findings);

}  // namespace nanotron::parallel
