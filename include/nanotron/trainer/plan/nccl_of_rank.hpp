#pragma once

// NCCL's communicators of a rank and the GPU memory that they take, for --plan and the search of grids.

#include "nanotron/comm/transport/nccl_memory.hpp"
#include "nanotron/deck/config_forward.hpp"

namespace nanotron::trainer {

/// config is resolved. Consecutive ranks fill a node.
std::vector<comm::NcclPlan> nccl_plans_of(const deck::Config& config, const comm::GridCoordinate& at,
                                          int ranks_of_node);

/// Zero where nothing goes through NCCL, and for a machine whose file has no &node.
comm::NcclMemory nccl_memory_of(const deck::Config& config, const comm::GridCoordinate& at,
                                const deck::Machine& machine);

}  // namespace nanotron::trainer
