#pragma once

// What a search of grids tries of experts: how many ranks share them, and which.

#include <string>
#include <vector>

#include "nanotron/deck/keys/model.hpp"
#include "nanotron/deck/keys/parallel.hpp"

namespace nanotron::simulation {

struct ExpertRanks {
  std::int64_t ep = 1;
  bool over_tp = false;  // whole experts on tensor-parallel ranks: ep is a multiple of tp

  std::vector<std::string> overrides() const;
  /// The smallest dp of a grid with such a group.
  std::int64_t smallest_dp(std::int64_t cp, std::int64_t tp) const;
};

/// All that a grid allows.
std::vector<ExpertRanks> expert_ranks(const deck::ModelConfig& model, std::int64_t dp, std::int64_t cp,
                                      std::int64_t tp);

/// "8", or "8t" where tensor-parallel ranks are among these.
std::string ep_text(const deck::ParallelConfig& parallel);

}  // namespace nanotron::simulation
