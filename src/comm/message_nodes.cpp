#include "nanotron/comm/message_nodes.hpp"

#include <fmt/format.h>

#include <string>
#include <vector>

#include "nanotron/base/error.hpp"
#include "nanotron/base/process.hpp"
#include "nanotron/comm/communicator.hpp"
#include "nanotron/comm/grid_shape.hpp"

namespace nanotron::comm {
namespace {

// "0 1 0 1"
std::string hosts_text(const HostMap& hosts, const std::vector<int>& ranks) {
  constexpr std::size_t shown = 32;
  std::string text;
  for (std::size_t i = 0; i < ranks.size() && i < shown; ++i)
    text += (i > 0 ? " " : "") + hosts.name(hosts.host_of(ranks[i]));
  return text + (ranks.size() > shown ? " ..." : "");
}

// Nodes of equally many consecutive ranks; 0: they are not.
int equal_nodes(const HostMap& hosts, const std::vector<int>& ranks) {
  std::size_t nodes = 1;
  for (std::size_t i = 1; i < ranks.size(); ++i)
    nodes += hosts.host_of(ranks[i]) != hosts.host_of(ranks[i - 1]) ? 1 : 0;
  if (ranks.size() % nodes != 0) return 0;
  const std::size_t each = ranks.size() / nodes;
  std::vector<bool> is_seen(static_cast<std::size_t>(hosts.hosts()), false);
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const auto host = static_cast<std::size_t>(hosts.host_of(ranks[i]));
    if (i % each != 0) {
      if (hosts.host_of(ranks[i]) != hosts.host_of(ranks[i - 1])) return 0;
    } else if (is_seen[host]) {
      return 0;
    }
    is_seen[host] = true;
  }
  return static_cast<int>(nodes);
}

}  // namespace

bool looks_for_message_nodes(const deck::ParallelConfig& p) {
  return p.ep_messages == deck::ExpertMessages::by_node && p.ep_nodes == 0;
}

int nodes_of_experts(const deck::Config& config, const HostMap& hosts) {
  const GridShape shape = shape_of(config);
  int nodes = 0;
  for (int rank = 0; rank < shape.size(); ++rank) {
    const std::vector<int> group = ranks_of_group(shape, coordinate_of(shape, rank), GroupKind::ep);
    if (group.front() != rank) continue;
    const int here = equal_nodes(hosts, group);
    if (here > 0 && (nodes == 0 || here == nodes)) {
      nodes = here;
      continue;
    }
    fail(ExitCode::deck_error,
         {.what = "messages by node need the same number of neighbouring expert-parallel ranks on each of their hosts",
          .expected = nodes > 0 ? fmt::format("{} hosts, each with {} ranks of ep", nodes, shape.ep / nodes)
                                : "hosts with equally many ranks of ep, one host after the other",
          .found = hosts_text(hosts, group),
          .where = fmt::format("hosts of the {} ranks of the expert-parallel group of rank {}", shape.ep, rank),
          .change = "parallel%order = 'tp-cp-dp-pp', another ep, ranks placed by node, or ep_messages = 'by_rank'"});
  }
  return nodes;
}

void find_message_nodes(deck::Config& config, MPI_Comm world) {
  if (!looks_for_message_nodes(config.parallel)) return;
  const std::vector<std::string> names = texts_at_root(world, host_name());
  const std::string hosts = text_of_root(world, [&] { return HostMap(names).packed(); });
  config.parallel.ep_nodes = nodes_of_experts(config, HostMap::unpacked(hosts));
}

deck::Config with_message_nodes(deck::Config config, const std::optional<deck::Machine>& machine) {
  if (!looks_for_message_nodes(config.parallel)) return config;
  if (!machine || machine->node.ranks == 0) {
    fail(ExitCode::deck_error, {.what = "messages by node are those of the hosts of a run, which a plan does not know",
                                .expected = "a machine with &node, or parallel%ep_nodes",
                                .found = machine ? "a machine without &node" : "neither",
                                .change = "--machine FILE, or --set parallel.ep_nodes"});
  }
  std::vector<std::string> names;
  for (int rank = 0; rank < shape_of(config).size(); ++rank)
    names.push_back(fmt::format("{}", rank / machine->node.ranks));
  config.parallel.ep_nodes = nodes_of_experts(config, names);
  return config;
}

}  // namespace nanotron::comm
