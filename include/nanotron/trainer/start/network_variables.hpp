#pragma once

// Environment variables of NCCL, libfabric (OFI), UCX and MPI that are publicly known to hang jobs or to make networks
// much slower, each with its source. The table is in network_variables.cpp.

#include <string>
#include <vector>

namespace nanotron::trainer {

/// One line for each variable of this process that has such a value. with_gpus: messages go through NCCL.
std::vector<std::string> network_warnings(bool with_gpus);

/// Whether this build runs on GPUs.
bool runs_on_gpus();

}  // namespace nanotron::trainer
