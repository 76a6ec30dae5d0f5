#pragma once

// Environment variables of NCCL, libfabric (OFI), UCX and MPI that are publicly known to hang jobs or to make networks
// much slower, each with its source. The table is in network_variables.cpp.

#include <string>
#include <vector>

#include "nanotron/tensor/tensor.hpp"

namespace nanotron::trainer {

/// One line for each variable of this process that has such a value; of NCCL, on GPUs.
std::vector<std::string> network_warnings(Processor processor = built_for);

}  // namespace nanotron::trainer
