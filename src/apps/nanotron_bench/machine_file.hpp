#pragma once

#include "bench.hpp"

namespace nanotron::apps::bench {

// The machine of these ranks (deck/machine.hpp), written by rank 0 to options.machine: all ranks at once, so that what
// they share is shared. `type`: of the shapes and kernels. Collective.
void write_machine(const Bench& bench, const comm::Communicator& world, ScalarType type);

}  // namespace nanotron::apps::bench
