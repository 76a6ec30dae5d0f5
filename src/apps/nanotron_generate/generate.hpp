#pragma once

#include "nanotron/comm/communicator.hpp"
#include "command_line.hpp"

namespace nanotron::apps {

// Reads the checkpoint, continues the prompt and prints the result. Collective over world.
void generate(const GenerateOptions& options, const comm::Communicator& world);

}  // namespace nanotron::apps
