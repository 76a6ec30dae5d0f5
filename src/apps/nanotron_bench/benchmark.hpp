#pragma once

#include "command_line.hpp"
#include "nanotron/comm/communicator.hpp"

namespace nanotron::apps::bench {

// Runs and reports the measurements of the options. Collective over world.
void run(const Options& options, const comm::Communicator& world);

}  // namespace nanotron::apps::bench
