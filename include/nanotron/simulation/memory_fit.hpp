#pragma once

// Whether a deck fits into the memory of a machine: the arena of the run (trainer::plan_step), planned for every rank
// of the pipeline.

#include "nanotron/deck/config_forward.hpp"
#include "nanotron/deck/machine.hpp"

namespace nanotron::simulation {

/// Left to CUDA, NCCL and the libraries on a GPU; to the program on a host.
inline constexpr double reserved_bytes = 4e9;

/// Of the rank of the pipeline that needs most. limit: the search for it ends above.
double memory_bytes(const deck::Config& config, const deck::Machine& machine, double limit);

/// True where the file does not tell the memory.
bool fits(const deck::Config& config, const deck::Machine& machine);

}  // namespace nanotron::simulation
