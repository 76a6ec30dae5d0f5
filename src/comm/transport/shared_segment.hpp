#pragma once

#include <cstddef>

#include "nanotron/comm/communicator.hpp"

namespace nanotron::comm {

/// Owns the mapping of memory that all ranks of a communicator share, one part per rank. Unmapping is
/// local. The kernel frees the memory with the last mapping, however the processes end.
class SharedSegment {
 public:
  SharedSegment() = default;
  ~SharedSegment();
  SharedSegment(const SharedSegment&) = delete;
  SharedSegment& operator=(const SharedSegment&) = delete;

  /// Maps zeroed parts of bytes_per_rank (a multiple of the page size). Collective; true on all ranks or
  /// false on all: ranks on several nodes, or no space in the shared memory file system.
  bool open(const Communicator& communicator, std::size_t bytes_per_rank);

  std::byte* part(int rank) const { return memory_ + static_cast<std::size_t>(rank) * bytes_per_rank_; }

 private:
  bool map(const Communicator& communicator, const char* name);

  std::byte* memory_ = nullptr;
  std::size_t bytes_per_rank_ = 0;
  std::size_t bytes_ = 0;
};

}  // namespace nanotron::comm
