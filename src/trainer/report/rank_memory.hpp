#pragma once

// Memory of the ranks. The log reports the rank that uses most.

#include <string>

#include "nanotron/comm/process_grid.hpp"
#include "nanotron/tensor/arena.hpp"

namespace nanotron::trainer {

/// Bytes of one rank.
struct RankMemory {
  int rank = 0;
  std::size_t program = 0;     // program and libraries: resident before the arena is allocated
  std::size_t staging = 0;     // buffers for messages
  std::size_t checkpoint = 0;  // in addition, while a checkpoint is written
  std::size_t peak = 0;        // max resident memory, set at the end of the run
  MemoryPlan plan;

  std::size_t planned() const { return program + staging + plan.total() + plan.on_host(); }
};

/// `mine` of the rank with the largest `bytes` (the lowest such rank), returned on every rank. Collective.
RankMemory of_largest(RankMemory mine, std::size_t bytes, comm::Group& world);

std::size_t staging_bytes(comm::ProcessGrid& grid);

std::string plan_text(const RankMemory& memory);
std::string peak_text(const RankMemory& memory);
/// What NCCL took on the rank where it is most; empty where it cannot tell. Collective.
std::string nccl_text(comm::Group& world);

}  // namespace nanotron::trainer
