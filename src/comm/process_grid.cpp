#include "nanotron/comm/process_grid.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string>

#include "nanotron/base/error.hpp"
#include "nanotron/base/process.hpp"
#include "nanotron/comm/grid_groups.hpp"
#include "nanotron/comm/transport/channel.hpp"
#include "nanotron/deck/config.hpp"
#include "nanotron/deck/expert_ranks.hpp"
#include "nanotron/deck/later_tokens.hpp"

namespace nanotron::comm {
namespace {

enum Axis { dp_axis, pp_axis, cp_axis, tp_axis };
constexpr std::array<const char*, 4> axis_names{"dp", "pp", "cp", "tp"};
using Four = std::array<int, 4>;  // one value per Axis

Four extents(const GridShape& s) { return {s.dp, s.pp, s.cp, s.tp}; }
Four values(const GridCoordinate& c) { return {c.dp, c.pp, c.cp, c.tp}; }

// The axes, innermost first.
Four axes_of(const std::string& order) {
  Four axes{};
  std::set<int> seen;
  bool good = order.size() == 11;
  for (std::size_t i = 0; good && i < 4; ++i) {
    const auto name = std::find(axis_names.begin(), axis_names.end(), order.substr(3 * i, 2));
    good = name != axis_names.end() && (i == 3 || order[3 * i + 2] == '-');
    if (!good) break;
    axes[i] = static_cast<int>(name - axis_names.begin());
    good = seen.insert(axes[i]).second;
  }
  if (!good) {
    fail(ExitCode::deck_error, {.what = "invalid order of the grid's axes",
                                .expected = "each of tp, cp, pp, dp once, joined by '-', innermost first",
                                .found = "'" + order + "'",
                                .where = "parallel%order",
                                .change = "order = 'tp-cp-pp-dp' suits most machines"});
  }
  return axes;
}

// Rank 0 gathers the names; the others receive each once.
HostMap gather_hosts(const Communicator& world) {
  const std::vector<std::string> names = texts_at_root(world.get(), host_name());
  return HostMap::unpacked(text_of_root(world.get(), [&] { return HostMap(names).packed(); }));
}

// Color of the group along `axes`: the rank of this coordinate with `axes` set to 0.
int group_of(const GridShape& shape, GridCoordinate c, std::initializer_list<Axis> axes) {
  for (const Axis axis : axes) (axis == dp_axis ? c.dp : axis == pp_axis ? c.pp : axis == cp_axis ? c.cp : c.tp) = 0;
  return rank_of(shape, c);
}

// One line: do the groups of this axis stay on one host? group(r): the color of rank r's group.
template <class Group>
std::string axis_line(std::string_view name, int extent, const HostMap& host_of_rank, const Group& group) {
  if (extent == 1) return fmt::format("  {} = {:<4} -\n", name, extent);
  std::map<int, std::set<int>> hosts;
  for (int r = 0; r < static_cast<int>(host_of_rank.size()); ++r) hosts[group(r)].insert(host_of_rank.host_of(r));
  std::size_t crossing = 0, most = 1;
  for (const auto& [group, names] : hosts) {
    crossing += names.size() > 1;
    most = std::max(most, names.size());
  }
  if (crossing == 0) return fmt::format("  {} = {:<4} every group inside one host\n", name, extent);
  return fmt::format("  {} = {:<4} {} of {} groups cross hosts (up to {} hosts per group)\n", name, extent, crossing,
                     hosts.size(), most);
}

// "0-3, 8" from sorted ranks.
std::string ranges(std::span<const int> ranks) {
  std::string text;
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t j = i;
    while (j + 1 < ranks.size() && ranks[j + 1] == ranks[j] + 1) ++j;
    if (!text.empty()) text += ", ";
    text += i == j ? fmt::format("{}", ranks[i]) : fmt::format("{}-{}", ranks[i], ranks[j]);
    i = j + 1;
  }
  return text;
}

constexpr int group_kinds = static_cast<int>(GroupKind::embedding) + 1;

// Rank `rank` of `size`, in shard groups of `shard` neighbours.
DataGroups planned_data_groups(int size, int rank, int shard, OperationLog* log, GroupKind first) {
  const auto kind = [&](int i) { return static_cast<GroupKind>(static_cast<int>(first) + i); };
  return {Group::planned(size, rank, {log, kind(0)}), Group::planned(shard, rank % shard, {log, kind(1)}),
          Group::planned(size / shard, rank / shard, {log, kind(2)})};
}

// Returns the shape if it fits the number of ranks.
const GridShape& checked(const GridShape& shape, const Communicator& world) {
  if (shape.size() != world.size() || std::min({shape.dp, shape.pp, shape.cp, shape.tp}) < 1) {
    fail(ExitCode::deck_error, {.what = "the grid does not fit the number of ranks",
                                .expected = fmt::format("{} ranks (dp {} x pp {} x cp {} x tp {})", shape.size(),
                                                        shape.dp, shape.pp, shape.cp, shape.tp),
                                .found = fmt::format("{} ranks", world.size()),
                                .where = "parallel",
                                .change = "start as many ranks as the grid has, or set one of the degrees to 0"});
  }
  const int of_shards = shape.shards * shape.tp_in_ep();
  NANOTRON_REQUIRE(
      shape.ep > 0 && shape.expert_ranks() % shape.ep == 0 && (of_shards % shape.ep == 0 || shape.ep % of_shards == 0),
      "{} expert ranks, ep {}, shard groups of {}", shape.expert_ranks(), shape.ep, shape.shards);
  NANOTRON_REQUIRE(shape.shards > 0 && shape.dp * shape.cp % shape.shards == 0,
                   "a data-parallel group of {} ranks in shard groups of {}", shape.dp * shape.cp, shape.shards);
  return shape;
}

}  // namespace

int GridShape::sequences_at_once(ReplicaSet replicas) const {
  return replicas == ReplicaSet::data_parallel ? 1 : ep / std::min(cp * tp_in_ep(), ep);
}

// Without ZeRO nothing is sharded.
int GridShape::expert_shards() const {
  const int ranks = shards == 1 ? 1 : shards * tp_in_ep();
  return ranks > ep ? ranks / ep : 1;
}

int expert_rank(const GridShape& s, const GridCoordinate& c) {
  const int rank = data_parallel_rank(s, c);
  return s.ep_spans_tp ? rank * s.tp + c.tp : rank;
}

GridShape shape_of(const deck::Config& config) {
  const deck::ParallelConfig& p = config.parallel;
  return {.dp = static_cast<int>(p.dp),
          .pp = static_cast<int>(p.pp),
          .cp = static_cast<int>(p.cp),
          .tp = static_cast<int>(p.tp),
          .shards = static_cast<int>(deck::shard_group_size(p)),
          .ep = static_cast<int>(p.ep),
          .ep_spans_tp = deck::ep_spans_tp(p),
          .ep_nodes = p.ep_messages == deck::ExpertMessages::by_node ? std::max(1, static_cast<int>(p.ep_nodes)) : 1,
          .cp_all_to_all = static_cast<int>(deck::all_to_all_ranks(p)),
          .order = p.order,
          .tp_sums = config.precision.reproducible == deck::Reproducible::layout ? Sums::tree : Sums::any_order,
          .engine = p.collective_engine,
          .ties_embedding = deck::embeds_at_end(config.model)};
}

int rank_of(const GridShape& shape, const GridCoordinate& coordinate) {
  const Four axes = axes_of(shape.order), n = extents(shape), c = values(coordinate);
  int rank = 0;
  for (int i = 3; i >= 0; --i) {
    const auto axis = static_cast<std::size_t>(axes[static_cast<std::size_t>(i)]);
    rank = rank * n[axis] + c[axis];
  }
  return rank;
}

GridCoordinate coordinate_of(const GridShape& shape, int rank) {
  const Four n = extents(shape);
  Four c{};
  for (const int a : axes_of(shape.order)) {
    const auto axis = static_cast<std::size_t>(a);
    c[axis] = rank % n[axis];
    rank /= n[axis];
  }
  return {.dp = c[dp_axis], .pp = c[pp_axis], .cp = c[cp_axis], .tp = c[tp_axis]};
}

std::string placement_report(const GridShape& shape, const HostMap& hosts) {
  NANOTRON_REQUIRE(hosts.size() == static_cast<std::size_t>(shape.size()), "{} hosts for {} ranks", hosts.size(),
                   shape.size());
  std::string text =
      fmt::format("grid: {} rank{} on {} host{}, order {} (innermost first)\n", shape.size(),
                  shape.size() == 1 ? "" : "s", hosts.hosts(), hosts.hosts() == 1 ? "" : "s", shape.order);
  for (const int axis : axes_of(shape.order)) {
    const auto a = static_cast<std::size_t>(axis);
    text += axis_line(axis_names[a], extents(shape)[a], hosts,
                      [&](int r) { return group_of(shape, coordinate_of(shape, r), {static_cast<Axis>(axis)}); });
  }
  if (shape.ep > 1) {
    text += axis_line("ep", shape.ep, hosts, [&](int r) {
      const GridCoordinate c = coordinate_of(shape, r);
      const int stage =
          shape.ep_spans_tp ? group_of(shape, c, {dp_axis, cp_axis, tp_axis}) : group_of(shape, c, {dp_axis, cp_axis});
      return stage * shape.size() + expert_rank(shape, c) / shape.ep;
    });
  }
  constexpr int shown = 32;
  for (int host = 0; host < std::min(hosts.hosts(), shown); ++host) {
    text += fmt::format("  {}: ranks {}\n", hosts.name(host), ranges(hosts.ranks_of(host)));
  }
  if (hosts.hosts() > shown) text += fmt::format("  ... and {} more hosts\n", hosts.hosts() - shown);
  return text;
}

std::vector<Group*> ProcessGrid::owners(ReplicaSet replicas) {
  const bool of_experts = replicas == ReplicaSet::expert_data_parallel;
  if (of_experts && shape_.ep_spans_tp) return {&data_parallel()};
  std::vector<Group*> groups{&data_groups(replicas).shard};
  if (of_experts && g_.ep.size() > 1) groups.push_back(&g_.ep);
  return groups;
}

bool ProcessGrid::may_own(ReplicaSet replicas) {
  const bool is_over_tp = replicas == ReplicaSet::expert_data_parallel && shape_.ep_spans_tp;
  return !is_over_tp || data_groups(replicas).replicate.rank() == 0;
}

ProcessGrid::Groups ProcessGrid::make_groups(const Communicator& world, const GridShape& shape, Transport transport) {
  const GridCoordinate at = coordinate_of(checked(shape, world), world.rank());
  Communicator node = world.split_by_node(), all = Communicator::duplicate(world.get());
  int first_of_node = world.rank();
  NANOTRON_CHECK_MPI(MPI_Bcast(&first_of_node, 1, MPI_INT, 0, node.get()));
  all.note_node(first_of_node);
  NANOTRON_CHECK_MPI(MPI_Barrier(all.get()));  // what follows waits for a group's ranks, and does not sleep
  std::array<Communicator, group_kinds> of_kind;
  for (int k = static_cast<int>(GroupKind::data); k < group_kinds; ++k) {
    if (!has_group(shape, static_cast<GroupKind>(k))) continue;
    const std::vector<int> ranks = ranks_of_group(shape, at, static_cast<GroupKind>(k));
    of_kind[static_cast<std::size_t>(k)] = ranks.size() > 1 ? all.of_ranks(ranks, k) : Communicator::self();
  }
  const auto group = [&](GroupKind kind, Sums sums = Sums::any_order) {
    Communicator& ranks = of_kind[static_cast<std::size_t>(kind)];
    if (!has_bulk_channel(shape, at, kind)) return Group(std::move(ranks), std::unique_ptr<Channel>());
    return Group(std::move(ranks), transport, sums, shape.engine);
  };
  std::vector<DataGroups> data;
  data.reserve(2);
  data.push_back({group(GroupKind::data), group(GroupKind::shard), group(GroupKind::replicate)});
  if (shape.has_expert_groups())
    data.push_back({group(GroupKind::expert_data), group(GroupKind::expert_shard), group(GroupKind::expert_replicate)});
  Group ep = group(GroupKind::ep), tp = group(GroupKind::tp, shape.tp_sums), cp = group(GroupKind::cp);
  Group ep_across = group(GroupKind::ep_across), ep_within = group(GroupKind::ep_within);
  Group cp_all_to_all = group(GroupKind::cp_all_to_all), cp_ring = group(GroupKind::cp_ring);
  Group pp = group(GroupKind::pp), embedding = group(GroupKind::embedding);
  return {Group(std::move(all), std::unique_ptr<Channel>()),
          std::move(data),
          std::move(ep),
          std::move(ep_across),
          std::move(ep_within),
          std::move(tp),
          std::move(cp),
          std::move(cp_all_to_all),
          std::move(cp_ring),
          std::move(pp),
          std::move(embedding),
          std::move(node)};
}

ProcessGrid::ProcessGrid(const GridShape& shape, const GridCoordinate& at, Groups groups)
    : shape_(shape), coordinate_(at), g_(std::move(groups)) {}

ProcessGrid::ProcessGrid(const Communicator& world, const GridShape& shape, Transport transport)
    : ProcessGrid(shape, coordinate_of(checked(shape, world), world.rank()), make_groups(world, shape, transport)) {
  hosts_ = gather_hosts(world);
}

ProcessGrid ProcessGrid::planned(const GridShape& s, const GridCoordinate& at, OperationLog* log) {
  const int rank = data_parallel_rank(s, at), size = s.dp * s.cp, n = s.cp_all_to_all, expert = expert_rank(s, at);
  const int of_node = s.ep / s.ep_nodes;
  std::vector<DataGroups> data;
  data.push_back(planned_data_groups(size, rank, s.shards, log, GroupKind::data));
  if (s.has_expert_groups()) {
    data.push_back(
        planned_data_groups(s.expert_ranks() / s.ep, expert / s.ep, s.expert_shards(), log, GroupKind::expert_data));
  }
  return {s,
          at,
          {Group::planned(s.size(), rank_of(s, at)), std::move(data),
           Group::planned(s.ep, expert % s.ep, {log, GroupKind::ep}),
           Group::planned(s.ep_nodes, expert % s.ep / of_node, {log, GroupKind::ep_across}),
           Group::planned(s.has_parts_of_ep() ? of_node : 1, s.has_parts_of_ep() ? expert % of_node : 0,
                          {log, GroupKind::ep_within}),
           Group::planned(s.tp, at.tp, {log, GroupKind::tp}), Group::planned(s.cp, at.cp, {log, GroupKind::cp}),
           Group::planned(s.has_parts_of_cp() ? n : 1, s.has_parts_of_cp() ? at.cp % n : 0,
                          {log, GroupKind::cp_all_to_all}),
           Group::planned(s.has_parts_of_cp() ? s.cp / n : 1, s.has_parts_of_cp() ? at.cp / n : 0,
                          {log, GroupKind::cp_ring}),
           Group::planned(s.pp, at.pp, {log, GroupKind::pp}),
           Group::planned(has_embedding_group(s, at) ? 2 : 1, has_embedding_group(s, at) && at.pp > 0 ? 1 : 0,
                          {log, GroupKind::embedding}),
           Communicator()}};
}

void ProcessGrid::register_memory(const Registration& registration) {
  for_each_group([&](Group& group, GroupKind kind) {
    if (kind == GroupKind::embedding) return;  // one all-reduce per step
    group.register_memory(kind == GroupKind::pp ? by_rank(registration) : registration);
  });
}

void check_grid(const deck::Config& c, deck::Findings& f) {
  const deck::ParallelConfig& p = c.parallel;
  std::string order = "-" + p.order + "-";
  bool complete = p.order.size() == 11;
  for (const char* axis : {"-tp-", "-cp-", "-pp-", "-dp-"}) {
    complete = complete && order.find(axis) != std::string::npos;
  }
  if (!complete && f.is_valid({"parallel.order"})) {
    f.error({"parallel.order"}, deck::quoted(p.order) + " is not an order of the grid's axes",
            "tp, cp, pp and dp, each once, joined by '-', the innermost first: 'tp-cp-pp-dp'");
  }
  if (p.collective_engine == deck::CollectiveEngine::copies &&
      p.register_memory != deck::MemoryRegistration::symmetric &&
      f.is_valid({"parallel.collective_engine", "parallel.register_memory"})) {
    f.error({"parallel.collective_engine", "parallel.register_memory"}, "copy engines need symmetric memory",
            "register_memory = 'symmetric'", "or collective_engine = 'blocks'");
  }
}

}  // namespace nanotron::comm
