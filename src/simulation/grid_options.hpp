#pragma once

// The choices of a search, and which of them are worth a look.

#include <string>
#include <vector>

#include "nanotron/deck/checks/findings.hpp"
#include "nanotron/deck/keys/parallel.hpp"
#include "nanotron/deck/machine.hpp"

namespace nanotron::simulation {

struct GridOptions {
  std::int64_t dp = 1, tp = 1, pp = 1, cp = 1, ep = 1, micro_batch = 1, virtual_stages = 1;
  deck::PpSchedule schedule = deck::PpSchedule::one_f_one_b;
  int zero_stage = 0;
  deck::Recompute recompute = deck::Recompute::none;

  std::vector<std::string> overrides() const;
  /// In flight on a rank at once, at most, as micro-batches of a whole stage.
  double in_flight(std::int64_t micro_batches) const;
};

/// All combinations of `ranks` that the sizes of the deck allow; base: read, not resolved for these ranks.
std::vector<GridOptions> grid_options(const deck::Config& base, int ranks, const deck::Machine& machine);

/// Bytes that these options need at least on the first rank.
double min_memory(const deck::Config& base, const GridOptions& options);

}  // namespace nanotron::simulation
