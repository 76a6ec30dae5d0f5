#pragma once

// Memory for kernels from which data are sent: on a GPU of the kind that NCCL can share with peers (ncclMemAlloc), so
// that it can be registered with the groups of a grid.

#include <cstddef>

#include "nanotron/comm/process_grid.hpp"

namespace nanotron::comm {

/// Uninitialised; null where there is not so much.
std::byte* allocate_device_memory(std::size_t bytes);
void free_device_memory(std::byte* memory);

/// While it exists, all groups of the grid may have registered the memory. Not collective.
class MemoryRegistration {
 public:
  MemoryRegistration(ProcessGrid& grid, RegisteredMemory memory) : grid_(grid) { grid.register_memory(memory); }
  ~MemoryRegistration() { grid_.register_memory({}); }
  MemoryRegistration(const MemoryRegistration&) = delete;
  MemoryRegistration& operator=(const MemoryRegistration&) = delete;

 private:
  ProcessGrid& grid_;
};

}  // namespace nanotron::comm
