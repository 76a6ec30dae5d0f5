#include "simulation/expert_options.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "nanotron/deck/config.hpp"
#include "nanotron/deck/expert_ranks.hpp"
#include "nanotron/deck/layer_kinds.hpp"

namespace nanotron::simulation {

std::vector<std::string> ExpertRanks::overrides() const {
  return {fmt::format("parallel.ep={}", ep), fmt::format("parallel.expert_tp={}", over_tp ? 1 : 0)};
}

std::int64_t ExpertRanks::smallest_dp(std::int64_t cp, std::int64_t tp) const {
  const std::int64_t others = over_tp ? cp * tp : cp;
  return std::lcm(ep, others) / others;
}

// With tensor-parallel ranks only groups that have all of those which share a layer: a smaller ep stores each expert on
// several of them, and adds their gradients.
std::vector<ExpertRanks> expert_ranks(const deck::ModelConfig& model, std::int64_t dp, std::int64_t cp,
                                      std::int64_t tp) {
  const std::int64_t networks = deck::feed_forward_sizes(model).networks;
  std::vector<ExpertRanks> all;
  for (std::int64_t ep = 1; ep <= std::min(networks, dp * cp * tp); ++ep) {
    if (networks % ep != 0) continue;
    if ((dp * cp) % ep == 0) all.push_back({ep, false});
    if (tp > 1 && ep % tp == 0 && (dp * cp * tp) % ep == 0) all.push_back({ep, true});
  }
  return all;
}

std::string ep_text(const deck::ParallelConfig& parallel) {
  return fmt::format("{}{}", parallel.ep, deck::ep_spans_tp(parallel) ? "t" : "");
}

}  // namespace nanotron::simulation
