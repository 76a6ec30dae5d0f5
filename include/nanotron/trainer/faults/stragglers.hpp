#pragma once

// Names ranks that compute longer than others with the same work, before they hang or while they only slow a run down.

#include <cstdint>
#include <string>
#include <vector>

#include "nanotron/base/log.hpp"
#include "nanotron/base/timer.hpp"
#include "nanotron/comm/process_grid.hpp"

namespace nanotron::trainer {

struct Straggler {
  int rank = 0;
  double seconds = 0.0, median = 0.0;  // of computing; the median is that of the ranks of its pipeline stage
  double waited = 0.0;                 // of these seconds, for a core that others used, if that is why it is slow
};

/// Ranks that computed for at least 1.5 times the median of the ranks of their stage, the slowest first: without the
/// seconds of waiting for a core of their host, or, if no rank is slow then, with them. A stage of one rank has none.
/// All arguments by rank.
std::vector<Straggler> stragglers(const std::vector<double>& computing, const std::vector<double>& waited,
                                  const std::vector<int>& stage_of_rank);

/// Compares the phases of all ranks every `every` steps and warns of the slowest.
class StragglerWatch {
 public:
  StragglerWatch(std::int64_t every, Timers& timers, comm::ProcessGrid& grid, Log& log);

  /// Call it after each step. Collective over the world when it is due.
  void check(std::int64_t step);

 private:
  std::int64_t every_;
  Timers& timers_;
  comm::ProcessGrid& grid_;
  Log& log_;
  std::vector<double> before_;  // of this rank, by phase
  double waited_before_ = 0.0;  // for a core
  std::int64_t since_ = 0;
};

}  // namespace nanotron::trainer
