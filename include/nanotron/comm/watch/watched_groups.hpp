#pragma once

// Groups of a grid whose operations are timed, or whose data is watched.

#include <cstddef>
#include <cstdint>
#include <span>

#include "nanotron/comm/process_grid.hpp"

namespace nanotron::comm {

// An observer of the data that a rank gives to operations between ranks, in the order of its calls.

/// The order of operations that ranks share: the collectives of a group, or the messages of a lane from one rank to its
/// neighbour. The n-th call of a line on one of its ranks belongs to the n-th on the others.
using Line = std::uint64_t;

class PayloadWatch {
 public:
  virtual ~PayloadWatch() = default;
  /// Called before an operation starts: what this rank gives to it, in memory of the group's transport, complete for
  /// work queued on the operation's stream; bytes = 0: nothing, as in a receive. Returns a ticket for arrived.
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

// The operations of a grid's groups as regions of timers.

/// The operations along one axis of the grid; for the data-parallel axis also those of its shard and replicate groups.
struct AxisOperations {
  const char* axis;  // "tp", "cp", "pp", "ep", "dp" or "world"
  OperationNames names;
};
std::span<const AxisOperations> axis_operations();

/// While it exists, the operations of all groups of the grid are regions of the timers, which outlive it.
class TimedGroups {
 public:
  TimedGroups(ProcessGrid& grid, Timers& timers) : grid_(grid) { time_with(&timers); }
  ~TimedGroups() { time_with(nullptr); }
  TimedGroups(const TimedGroups&) = delete;
  TimedGroups& operator=(const TimedGroups&) = delete;

 private:
  void time_with(Timers* timers);
  ProcessGrid& grid_;
};

}  // namespace nanotron::comm
