#pragma once

// How many ranks of a machine a run needs: the fewest that train a number of tokens in a number of days, and what the
// run costs.
//
//   1  no rank is faster than its peak: tokens x FLOPs of a token / (seconds x peak) ranks are too few
//   2  from there whole nodes, doubled until the fastest grid that the search finds is fast enough
//   3  between the last two sizes, by halves, down to an eighth of the larger one
//
// A size whose ranks form no grid that fits (it does not divide the batch, the heads, the layers) is too slow.

#include <string>
#include <vector>

#include "nanotron/deck/config.hpp"
#include "nanotron/deck/machine.hpp"
#include "nanotron/simulation/grid_search.hpp"

namespace nanotron::simulation {

struct RunTarget {
  double tokens = 0.0, days = 0.0;
};

/// A run of the tokens on the fastest grid of `ranks`.
struct SizedRun {
  int ranks = 0;
  bool has_grid = false;  // else nothing below is set
  GridCandidate grid{};
  double days = 0.0, node_hours = 0.0;
  double kilowatt_hours = 0.0;  // 0: the machine's file names no power
};

/// All sizes that were looked at, by ranks. Error(deck_error) if 2^17 ranks are too few.
std::vector<SizedRun> size_run(const std::string& text, const std::string& name,
                               const std::vector<std::string>& overrides, const deck::Machine& machine,
                               const RunTarget& target, const SearchLimits& limits);

/// The fewest ranks within the target.
const SizedRun& smallest(const std::vector<SizedRun>& runs, const RunTarget& target);

std::string describe(const std::vector<SizedRun>& runs, const RunTarget& target, const deck::Machine& machine);
/// One line for each size that has a grid, with a header.
std::string as_csv(const std::vector<SizedRun>& runs, const deck::Machine& machine);

}  // namespace nanotron::simulation
