#pragma once

#include "command_line.hpp"
#include "nanotron/comm/communicator.hpp"

namespace nanotron::apps {

// Reads the checkpoint, continues the prompt and prints the result. Collective over world.
void generate(const GenerateOptions& options, const comm::Communicator& world);

}  // namespace nanotron::apps
