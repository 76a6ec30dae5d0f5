#pragma once

// Device memory that NCCL moves without copies of its own: from ncclMemAlloc, registered with the communicators of a
// grid (NCCL guide, "User Buffer Registration"), by each rank for itself or as windows that the ranks of a group share
// ("Window Registration", symmetric memory). On a host, and where groups do not use NCCL, plain memory.

#include <cstddef>
#include <memory>
#include <span>

#include "nanotron/comm/process_grid.hpp"

namespace nanotron::comm {

/// The grid must outlive it. Collective: all ranks of a group construct theirs before they exchange data from it, and
/// all ranks of a group or none pass such memory to an operation. Symmetric memory has the same size on all ranks of a
/// group (except pp groups), and operands of a collective the same offset. No operation of the grid may run at its
/// destruction, which waits for the device; during stack unwinding nothing is freed.
class RegisteredMemory {
 public:
  /// Uninitialised, 256-byte aligned. Error(system_error) if memory does not suffice or NCCL refuses it; deck_error if
  /// NCCL is too old.
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
