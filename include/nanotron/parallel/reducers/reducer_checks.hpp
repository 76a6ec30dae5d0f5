#pragma once

#include "nanotron/deck/config.hpp"
#include "nanotron/deck/findings.hpp"

namespace nanotron::parallel {

/// parallel%compression is of the all-reduce of whole gradients.
void check_compression(const deck::Config& config, deck::Findings& findings);

/// Adasum combines gradients of different samples, each whole, on one rank of each tensor.
void check_adasum(const deck::Config& config, deck::Findings& findings);

}  // namespace nanotron::parallel
