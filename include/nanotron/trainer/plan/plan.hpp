#pragma once

// The memory and communication of a step, computed on one process for any grid (--plan).

#include <cstddef>
#include <optional>
#include <string>

#include "nanotron/comm/process_grid.hpp"
#include "nanotron/comm/transport/nccl_memory.hpp"
#include "nanotron/comm/watch/step_traffic.hpp"
#include "nanotron/deck/checks/findings.hpp"
#include "nanotron/deck/config.hpp"
#include "nanotron/deck/machine.hpp"
#include "nanotron/tensor/arena.hpp"

namespace nanotron::trainer {

/// Memory and communication of a rank in a step, computed on one process for any rank of any grid, on this build's kind
/// of processor or another. config is resolved.
struct StepPlan {
  MemoryPlan memory;
  comm::StepTraffic traffic;
  std::size_t checkpoint_bytes = 0;  // temporary, see checkpoint_workspace
  std::size_t neighbour_bytes = 0;   // of each rank in checkpoint%neighbour_directory
};
StepPlan plan_step(const deck::Config& config, const comm::GridCoordinate& at, Processor processor = built_for);

/// The plan of the deck as text: grid, sizes, FLOPs, and memory and traffic of the rank that needs most memory; with a
/// machine also its roofline.
std::string describe_plan(const deck::Config& config, const std::optional<deck::Machine>& machine);

// NCCL's communicators of a rank and the GPU memory that they take, for --plan and the search of grids.

/// config is resolved. Consecutive ranks fill a node.
std::vector<comm::NcclPlan> nccl_plans_of(const deck::Config& config, const comm::GridCoordinate& at,
                                          int ranks_of_node);

/// Zero where nothing goes through NCCL, and for a machine whose file has no &node.
comm::NcclMemory nccl_memory_of(const deck::Config& config, const comm::GridCoordinate& at,
                                const deck::Machine& machine);

}  // namespace nanotron::trainer
