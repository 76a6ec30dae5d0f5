#pragma once

// The grid of ranks, world = dp x pp x cp x tp, as numbers: pure functions, for a grid of any size in one process. Only
// src/comm/process_grid.cpp knows the order of ranks.

#include <array>
#include <string>
#include <vector>

#include "nanotron/comm/group.hpp"
#include "nanotron/comm/host_map.hpp"
#include "nanotron/deck/checks/findings.hpp"

namespace nanotron::comm {

/// Which ranks store the same parameters: the data-parallel group; for experts every ep-th rank of it, or of the ranks
/// of a stage where experts are whole.
enum class ReplicaSet { data_parallel, expert_data_parallel };

/// A value for each ReplicaSet.
template <class V>
struct PerReplicaSet {
  std::array<V, 2> values;
  PerReplicaSet(const V& all = {}) : values{all, all} {}  // NOLINT: one for both
  PerReplicaSet(const V& of_data, const V& of_experts) : values{of_data, of_experts} {}
  template <class F>
  static PerReplicaSet of_each(const F& f) {
    return {f(ReplicaSet::data_parallel), f(ReplicaSet::expert_data_parallel)};
  }
  const V& operator[](ReplicaSet replicas) const { return values[static_cast<std::size_t>(replicas)]; }
};

struct GridShape {
  int dp = 1, pp = 1, cp = 1, tp = 1;
  int shards = 1;                     // size of a shard group (ZeRO): neighbours of the data-parallel group (dp x cp)
  int ep = 1;                         // size of an expert-parallel group: neighbours among the expert ranks
  bool ep_spans_tp = false;           // on each tensor-parallel rank: they are expert ranks too (needs tp > 1)
  int ep_nodes = 1;                   // of an expert-parallel group whose messages go by node
  int cp_all_to_all = 1;              // neighbours in cp that exchange tokens for heads
  std::string order = "tp-cp-pp-dp";  // innermost first: the first axis varies fastest over ranks
  Sums tp_sums = Sums::any_order;
  deck::CollectiveEngine engine = deck::CollectiveEngine::blocks;
  bool ties_embedding = false;  // the first and the last rank of a pipeline may hold the same embedding

  int size() const { return dp * pp * cp * tp; }
  bool has_parts_of_ep() const { return ep_nodes > 1; }
  bool has_parts_of_cp() const { return 1 < cp_all_to_all && cp_all_to_all < cp; }
  /// Ranks of a stage among which experts are distributed: the data-parallel group, or tp times as many.
  int expert_ranks() const { return dp * cp * tp_in_ep(); }
  int tp_in_ep() const { return ep_spans_tp ? tp : 1; }
  bool has_expert_groups() const { return ep > 1 || ep_spans_tp; }  // else experts are replicated as all else is
  int expert_shards() const;                                        // ranks of a shard group with the same experts
  int sequences_at_once(ReplicaSet replicas) const;                 // whose tokens meet on a rank with these parameters
};

/// config: a resolved deck.
GridShape shape_of(const deck::Config& config);

struct GridCoordinate {
  int dp = 0, pp = 0, cp = 0, tp = 0;
  friend bool operator==(const GridCoordinate&, const GridCoordinate&) = default;
};

/// Pure functions, inverses of each other:
///   rank = c[a0] + n[a0] * (c[a1] + n[a1] * (c[a2] + n[a2] * c[a3])),  order = "a0-a1-a2-a3".
/// Error(deck_error) when order is not a permutation of tp, cp, pp, dp.
int rank_of(const GridShape& shape, const GridCoordinate& coordinate);
GridCoordinate coordinate_of(const GridShape& shape, int rank);

/// The rank in its data-parallel group.
inline int data_parallel_rank(const GridShape& shape, const GridCoordinate& c) { return c.dp * shape.cp + c.cp; }
/// Among the expert ranks of its stage: tp varies fastest, then cp, then dp.
int expert_rank(const GridShape& shape, const GridCoordinate& coordinate);

/// The placement as text: the grid, the ranks of each host, and for each axis whether its groups stay inside a host
/// or cross hosts (how many groups cross, max hosts per group).
std::string placement_report(const GridShape& shape, const HostMap& hosts);

/// The ranks of a group of the rank at `at`, in the order of the group; of a grid of any size in one process.
std::vector<int> ranks_of_group(const GridShape& shape, const GridCoordinate& at, GroupKind kind);

}  // namespace nanotron::comm
