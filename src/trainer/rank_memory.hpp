#pragma once

// What the ranks take, of which a log tells the largest.

#include <string>

#include "nanotron/comm/process_grid.hpp"
#include "nanotron/tensor/arena.hpp"

namespace nanotron::trainer {

/// Bytes of one rank.
struct RankMemory {
  int rank = 0;
  std::size_t program = 0;     // with its libraries, before the rest
  std::size_t staging = 0;     // of messages
  std::size_t checkpoint = 0;  // more, while one is written
  std::size_t peak = 0;        // once the run is over
  MemoryPlan plan;

  std::size_t planned() const { return program + staging + plan.total(); }
};

/// That of the rank with the largest `bytes`, of several the first; the same on every rank. Collective.
RankMemory of_largest(RankMemory mine, std::size_t bytes, comm::Group& world);

std::size_t staging_bytes(comm::ProcessGrid& grid);

std::string plan_text(const RankMemory& memory);
std::string peak_text(const RankMemory& memory);

}  // namespace nanotron::trainer
