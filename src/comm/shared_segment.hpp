#pragma once

#include <cstddef>

#include "nanotron/comm/communicator.hpp"

namespace nanotron::comm {

/// Owns the mapping of memory that all ranks of a communicator share, one part a rank. Unmapping is
/// local; the memory is gone with the last mapping, whatever way the processes end.
class SharedSegment {
 public:
  SharedSegment() = default;
  ~SharedSegment();
  SharedSegment(const SharedSegment&) = delete;
  SharedSegment& operator=(const SharedSegment&) = delete;

  /// Zeroed parts of bytes_per_rank (a multiple of the page size). Collective; true on all ranks or
  /// false on all: not on one node, or no room in the shared memory file system.
  bool open(const Communicator& communicator, std::size_t bytes_per_rank);

  std::byte* part(int rank) const { return memory_ + static_cast<std::size_t>(rank) * bytes_per_rank_; }

 private:
  bool map(const Communicator& communicator, const char* name);

  std::byte* memory_ = nullptr;
  std::size_t bytes_per_rank_ = 0;
  std::size_t bytes_ = 0;
};

}  // namespace nanotron::comm
