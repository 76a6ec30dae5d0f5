#include "nanotron/simulation/collective_time.hpp"

#include <algorithm>
#include <cmath>
#include <set>

#include "nanotron/base/error.hpp"

namespace nanotron::simulation {
namespace {

void require(const GroupPlacement& group, const deck::Machine& m) {
  const bool lacks_node = m.node.ranks == 0, lacks_network = group.nodes > 1 && m.network.rails == 0;
  if (!lacks_node && !lacks_network) return;
  fail(ExitCode::deck_error, {.what = "the machine file does not describe how its ranks are connected",
                              .expected = lacks_node ? "a group &node" : "a group &network",
                              .found = m.name,
                              .change = "see input/machines/h100.nml"});
}

}  // namespace

GroupPlacement placement_of(const std::vector<int>& ranks, const deck::Machine& machine) {
  std::set<int> nodes;
  for (const int rank : ranks) nodes.insert(machine.node.ranks == 0 ? 0 : rank / machine.node.ranks);
  return {static_cast<int>(ranks.size()), static_cast<int>(nodes.size())};
}

double collective_seconds(comm::Operation operation, double bytes, const GroupPlacement& group,
                          const deck::Machine& m) {
  if (group.ranks <= 1) return 0.0;
  require(group, m);
  const auto n = static_cast<double>(group.ranks), nodes = static_cast<double>(group.nodes);
  const double g = n / nodes, share_of_others = (n - 1.0) / n;
  const bool crosses = group.nodes > 1;
  const double rail = crosses ? m.network.rails * m.network.rail / m.node.ranks : 0.0;
  const double bandwidth = crosses ? std::min(m.node.link, g * rail) : m.node.link;
  const double near = m.node.latency, far = crosses ? m.network.latency : 0.0;
  const double ring_steps = (n - nodes) * near + (nodes - 1.0) * far;
  const double tree_steps = (g - 1.0) * near + std::ceil(std::log2(nodes)) * far;
  switch (operation) {
    case comm::Operation::all_reduce:
      return 2.0 * (share_of_others * bytes / bandwidth + std::min(ring_steps, tree_steps));
    case comm::Operation::all_gather:
    case comm::Operation::reduce_scatter:
      return share_of_others * bytes / bandwidth + ring_steps;
    case comm::Operation::broadcast:
      return bytes / bandwidth + tree_steps;
    case comm::Operation::all_to_all: {
      const double inside = (g - 1.0) / n * bytes / m.node.link, outside = crosses ? (n - g) / n * bytes / rail : 0.0;
      return std::max(inside, outside) + (g - 1.0) * near + (n - g) * far;
    }
    default:
      return bytes / (crosses ? rail : m.node.link) + (crosses ? far : near);
  }
}

}  // namespace nanotron::simulation
