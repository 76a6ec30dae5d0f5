#pragma once

// The choices of a search, and which of them are worth a look.

#include <string>
#include <vector>

#include "nanotron/deck/checks/findings.hpp"
#include "nanotron/deck/keys/optimizer.hpp"
#include "nanotron/deck/keys/parallel.hpp"
#include "nanotron/deck/machine.hpp"

namespace nanotron::simulation {

struct GridOptions {
  std::int64_t dp = 1, tp = 1, pp = 1, cp = 1, ep = 1, micro_batch = 1, virtual_stages = 1;
  deck::PpSchedule schedule = deck::PpSchedule::one_f_one_b;
  int zero_stage = 0;
  deck::Recompute recompute = deck::Recompute::none;
  deck::StateMemory states = deck::StateMemory::device;
  bool messages_by_node = false;
  bool ep_over_tp = false;  // ExpertRanks::over_tp

  std::vector<std::string> overrides() const;
  /// In flight on a rank at once, at most, as micro-batches of a whole stage.
  double in_flight(std::int64_t micro_batches) const;
};

/// So that a deck can be read for one rank, whatever it asks of the ranks of its grid.
std::vector<std::string> on_one_rank(std::vector<std::string> overrides);

/// All combinations of `ranks` that the sizes of the deck allow; base: read, not resolved for these ranks.
std::vector<GridOptions> grid_options(const deck::Config& base, int ranks, const deck::Machine& machine);

/// A lower bound of the memory of a rank.
class LeastMemory {
 public:
  /// base: read for one rank. Must outlive it.
  explicit LeastMemory(const deck::Config& base);
  /// Bytes that these options need on the rank that needs most.
  double of(const GridOptions& options) const;
  /// Of which the states that an update reads and writes.
  double of_states(const GridOptions& options) const;

 private:
  // Elements of 2-D and 1-D parameters, of experts or not.
  struct Elements {
    double dense = 0.0, routed = 0.0;
    double on_rank(const GridOptions& o) const {
      const double of_tp = o.ep_over_tp ? 1.0 : static_cast<double>(o.tp);
      return (dense / static_cast<double>(o.tp) + routed / (static_cast<double>(o.ep) * of_tp)) /
             static_cast<double>(o.pp);
    }
  };
  const deck::Config& base_;
  Elements trained_{}, others_{};                                    // others: read only
  double weight_ = 0.0, master_ = 0.0, wider_ = 0.0, states_ = 0.0;  // bytes for each element; wider: of weights in T
};

}  // namespace nanotron::simulation
