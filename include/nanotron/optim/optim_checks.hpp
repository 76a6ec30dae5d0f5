#pragma once

#include "nanotron/deck/config.hpp"
#include "nanotron/deck/findings.hpp"

namespace nanotron::optim {

/// The learning-rate schedule against the steps of the run.
void check_schedule(const deck::Config& config, deck::Findings& findings);

/// Muon orthogonalises matrices that the grid shards.
void check_muon(const deck::Config& config, deck::Findings& findings);

}  // namespace nanotron::optim
