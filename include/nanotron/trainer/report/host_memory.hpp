#pragma once

// The memory that the ranks of a host need, against the limits of host and control groups: reported before the kernel
// ends a rank for it.

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "nanotron/base/log.hpp"
#include "nanotron/comm/limits/limits.hpp"
#include "nanotron/comm/process_grid.hpp"

namespace nanotron::trainer {

/// Bytes of one rank. A limit of 0 bytes: none.
struct MemoryNeed {
  static constexpr std::size_t max_limits = 12;
  struct Limit {
    std::uint64_t bytes = 0, group = 0;
  };
  std::uint64_t certain = 0;   // memory of the step and buffers for messages
  std::uint64_t possible = 0;  // with program and libraries, and while a checkpoint is written
  std::array<Limit, max_limits> limits{};
};

MemoryNeed memory_need(std::uint64_t certain, std::uint64_t besides, std::span<const comm::MemoryLimit> limits);

/// The limit that its ranks exceed most.
struct MemoryShortage {
  std::uint64_t needed = 0, allowed = 0, group = 0;
  int ranks = 0;
  bool is_certain = false;  // else while a checkpoint is written, or if no page of the libraries is shared
};

/// The shortage of one host; ranks == 0 if there is none. A shortage that is certain comes before one that is not.
MemoryShortage memory_shortage(std::span<const MemoryNeed> ranks);

/// Error(deck_error) where the ranks of a host certainly exceed a limit, a warning where they may. Bytes of this rank
/// as above, in memory of the host. Collective.
void check_host_memory(std::uint64_t certain, std::uint64_t besides, comm::ProcessGrid& grid, Log& log);

}  // namespace nanotron::trainer
