#pragma once

// The operations of a grid's groups as regions of timers.

#include <span>

#include "nanotron/comm/process_grid.hpp"

namespace nanotron::comm {

/// The operations along one axis of the grid: of the data-parallel axis those of its shard and replica groups too.
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
