#include "nanotron/comm/grid_groups.hpp"

#include <algorithm>

namespace nanotron::comm {
namespace {

// Groups that this rank of this shape has no use for.
bool is_alone(const GridShape& shape, const GridCoordinate& at, GroupKind kind) {
  if (kind == GroupKind::embedding) return !has_embedding_group(shape, at);
  if (kind == GroupKind::to_host || kind == GroupKind::from_host) return true;
  if (kind == GroupKind::ep_across || kind == GroupKind::ep_within) return !shape.has_parts_of_ep();
  return (kind == GroupKind::cp_all_to_all || kind == GroupKind::cp_ring) && !shape.has_parts_of_cp();
}

// In the stage of the rank at `at`; with its tp unless that is one of the axes of these ranks.
GridCoordinate at_data_parallel_rank(const GridShape& s, const GridCoordinate& at, int rank) {
  return {.dp = rank / s.cp, .pp = at.pp, .cp = rank % s.cp, .tp = at.tp};
}
GridCoordinate at_expert_rank(const GridShape& s, const GridCoordinate& at, int rank) {
  GridCoordinate c = at_data_parallel_rank(s, at, rank / s.tp_in_ep());
  if (s.ep_spans_tp) c.tp = rank % s.tp;
  return c;
}

// Consecutive ranks of ep are on a node.
std::vector<int> part_of_ep(const GridShape& s, const GridCoordinate& at, GroupKind kind) {
  const std::vector<int> ep = ranks_of_group(s, at, GroupKind::ep);
  const auto of_node = ep.size() / static_cast<std::size_t>(s.ep_nodes);
  const auto me = static_cast<std::size_t>(std::ranges::find(ep, rank_of(s, at)) - ep.begin());
  std::vector<int> ranks;
  for (std::size_t i = 0; i < ep.size(); ++i) {
    if (kind == GroupKind::ep_within ? i / of_node == me / of_node : i % of_node == me % of_node)
      ranks.push_back(ep[i]);
  }
  return ranks;
}

}  // namespace

bool has_group(const GridShape& shape, GroupKind kind) {
  const bool is_of_experts =
      kind == GroupKind::expert_data || kind == GroupKind::expert_shard || kind == GroupKind::expert_replicate;
  return kind != GroupKind::world && (shape.has_expert_groups() || !is_of_experts);
}

bool has_bulk_channel(const GridShape& shape, const GridCoordinate& at, GroupKind kind) {
  switch (kind) {
    case GroupKind::world:
      return false;
    case GroupKind::replicate:
    case GroupKind::expert_replicate:
      return shape.shards > 1;
    case GroupKind::ep:
      return shape.ep > 1;
    case GroupKind::ep_across:
    case GroupKind::ep_within:
      return shape.has_parts_of_ep();
    case GroupKind::cp_all_to_all:
    case GroupKind::cp_ring:
      return shape.has_parts_of_cp();
    case GroupKind::embedding:
      return has_embedding_group(shape, at);
    default:
      return true;
  }
}

bool has_embedding_group(const GridShape& shape, const GridCoordinate& at) {
  return shape.ties_embedding && shape.pp > 1 && (at.pp == 0 || at.pp == shape.pp - 1);
}

std::vector<int> ranks_of_group(const GridShape& s, const GridCoordinate& at, GroupKind kind) {
  if (is_alone(s, at, kind)) return {rank_of(s, at)};
  if (kind == GroupKind::ep_across || kind == GroupKind::ep_within) return part_of_ep(s, at, kind);
  std::vector<int> ranks;
  const auto add = [&](int count, const auto& coordinate) {
    for (int i = 0; i < count; ++i) ranks.push_back(rank_of(s, coordinate(i)));
  };
  const int size = s.dp * s.cp, me = data_parallel_rank(s, at), all = s.expert_ranks(), expert = expert_rank(s, at);
  const int of_experts = expert / s.ep, shards = s.expert_shards();
  const auto replicas = [&](int first, int count, int stride) {
    add(count, [&](int i) { return at_data_parallel_rank(s, at, first + i * stride); });
  };
  const auto experts = [&](int first, int count, int stride) {
    add(count, [&](int i) { return at_expert_rank(s, at, first + i * stride); });
  };
  switch (kind) {
    case GroupKind::world:
      add(s.size(), [&](int i) { return coordinate_of(s, i); });
      break;
    case GroupKind::data:
      replicas(0, size, 1);
      break;
    case GroupKind::shard:
      replicas(me / s.shards * s.shards, s.shards, 1);
      break;
    case GroupKind::replicate:
      replicas(me % s.shards, size / s.shards, s.shards);
      break;
    case GroupKind::expert_data:
      experts(expert % s.ep, all / s.ep, s.ep);
      break;
    case GroupKind::expert_shard:
      experts(expert % s.ep + of_experts / shards * shards * s.ep, shards, s.ep);
      break;
    case GroupKind::expert_replicate:
      experts(expert % s.ep + of_experts % shards * s.ep, all / s.ep / shards, shards * s.ep);
      break;
    case GroupKind::ep:
      experts(expert / s.ep * s.ep, s.ep, 1);
      break;
    case GroupKind::tp:
      add(s.tp, [&](int i) { return GridCoordinate{at.dp, at.pp, at.cp, i}; });
      break;
    case GroupKind::cp:
      add(s.cp, [&](int i) { return GridCoordinate{at.dp, at.pp, i, at.tp}; });
      break;
    case GroupKind::cp_all_to_all:
      replicas(me / s.cp_all_to_all * s.cp_all_to_all, s.cp_all_to_all, 1);
      break;
    case GroupKind::cp_ring:
      replicas(me - at.cp / s.cp_all_to_all * s.cp_all_to_all, s.cp / s.cp_all_to_all, s.cp_all_to_all);
      break;
    case GroupKind::embedding:
      add(2, [&](int i) { return GridCoordinate{at.dp, i == 0 ? 0 : s.pp - 1, at.cp, at.tp}; });
      break;
    default:
      add(s.pp, [&](int i) { return GridCoordinate{at.dp, i, at.cp, at.tp}; });
  }
  return ranks;
}

}  // namespace nanotron::comm
