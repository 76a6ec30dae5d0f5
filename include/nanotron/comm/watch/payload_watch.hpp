#pragma once

// Who looks at the data that a rank gives to operations between ranks, in the order of its calls.

#include <cstddef>
#include <cstdint>

#include "nanotron/comm/process_grid.hpp"

namespace nanotron::comm {

/// The order of operations that ranks share: the collectives of a group, or the messages of a lane from one rank to its
/// neighbour. The n-th call of a line on one of its ranks belongs to the n-th on the others.
using Line = std::uint64_t;

class PayloadWatch {
 public:
  virtual ~PayloadWatch() = default;
  /// Before an operation starts: what this rank gives to it, in memory of the group's transport, complete for work
  /// queued on the stream of the operation; bytes = 0: nothing, as where it receives. Returns a ticket for arrived.
  virtual std::uint64_t gives(Line line, const void* data, std::size_t bytes) = 0;
  /// The data of the others are available to work that is queued from now on.
  virtual void arrived(std::uint64_t ticket) = 0;
};

/// While it exists, `watch` sees the bulk data of all groups of the grid; it outlives this. Values on the host are not
/// watched.
class WatchedGroups {
 public:
  WatchedGroups(ProcessGrid& grid, PayloadWatch& watch) : grid_(grid) { watch_by(&watch); }
  ~WatchedGroups() { watch_by(nullptr); }
  WatchedGroups(const WatchedGroups&) = delete;
  WatchedGroups& operator=(const WatchedGroups&) = delete;

 private:
  void watch_by(PayloadWatch* watch);
  ProcessGrid& grid_;
};

}  // namespace nanotron::comm
