#pragma once

// Device memory that NCCL moves without copies of its own: from ncclMemAlloc, registered with the communicators of a
// grid (NCCL guide, "User Buffer Registration"), by each rank for itself or as windows that the ranks of a group share
// ("Window Registration", symmetric memory). On a host, and where groups do not use NCCL, plain memory.

#include <cstddef>
#include <memory>
#include <span>

#include "nanotron/comm/process_grid.hpp"

namespace nanotron::comm {

/// Owned by its maker, and outlived by the grid. Collective: all ranks of a group make theirs before they exchange data
/// from it, and each operation is given such memory by all ranks of its group or by none; symmetric memory has one size
/// on all ranks of a group but of a pipeline's, and the operands of a collective one offset. No operation of the grid
/// runs when it ends, which waits for the device; where an exception is on its way, nothing is freed.
class RegisteredMemory {
 public:
  /// Uninitialised, 256-byte aligned. Error(system_error) where memory does not suffice, or NCCL refuses it; deck_error
  /// where NCCL is too old.
  RegisteredMemory(ProcessGrid& grid, std::size_t bytes, deck::MemoryRegistration how);
  ~RegisteredMemory();
  RegisteredMemory(const RegisteredMemory&) = delete;
  RegisteredMemory& operator=(const RegisteredMemory&) = delete;

  std::span<std::byte> bytes() const { return bytes_; }

 private:
  ProcessGrid& grid_;
  std::span<std::byte> bytes_;
};

}  // namespace nanotron::comm
