#pragma once

// Whether a deck fits into the memory of a machine: the arena of the run (trainer::plan_step), planned for every rank
// of the pipeline.

#include "nanotron/deck/config_forward.hpp"
#include "nanotron/deck/machine.hpp"

namespace nanotron::simulation {

/// Of the rank of the pipeline that needs most. limit: the search for it ends above.
double memory_bytes(const deck::Config& config, const deck::Machine& machine, double limit);

/// With NCCL's buffers within machine.buffer_limit().
bool fits(const deck::Config& config, const deck::Machine& machine);

}  // namespace nanotron::simulation
