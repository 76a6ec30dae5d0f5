#pragma once

#include "nanotron/deck/checks/findings.hpp"
#include "nanotron/deck/config_forward.hpp"

namespace nanotron::parallel {

/// At least one layer per stage, pp_layers, and what a schedule requires.
void check_pipeline(const deck::Config& config, deck::Findings& findings);

/// parallel%compression needs an all-reduce of gradients: zero_stage = 0.
void check_compression(const deck::Config& config, deck::Findings& findings);

/// Adasum needs on each data-parallel rank the whole gradient of its own samples.
void check_adasum(const deck::Config& config, deck::Findings& findings);

/// zero_size against zero_stage, dp x cp and experts.
void check_zero(const deck::Config& config, deck::Findings& findings);

}  // namespace nanotron::parallel
