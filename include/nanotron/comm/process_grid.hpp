#pragma once

// The device mesh: world = dp x pp x cp x tp. Only this file knows the order of ranks.

#include <array>
#include <string>
#include <vector>

#include "nanotron/comm/group.hpp"
#include "nanotron/deck/checks/findings.hpp"

namespace nanotron::comm {

/// Which ranks store the same parameters: the data-parallel group; for experts every ep-th rank of it.
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
  int ep = 1;                         // size of an expert-parallel group: neighbours of the data-parallel group
  int cp_all_to_all = 1;              // neighbours in cp that exchange tokens for heads
  std::string order = "tp-cp-pp-dp";  // innermost first: the first axis varies fastest over ranks
  Sums tp_sums = Sums::any_order;
  deck::CollectiveEngine engine = deck::CollectiveEngine::blocks;
  bool ties_embedding = false;  // the first and the last rank of a pipeline may hold the same embedding

  int size() const { return dp * pp * cp * tp; }
  bool has_parts_of_cp() const { return 1 < cp_all_to_all && cp_all_to_all < cp; }
  int expert_shards() const { return shards > ep ? shards / ep : 1; }  // ranks of a shard group with the same experts
  int sequences_at_once(ReplicaSet replicas) const;  // whose tokens meet on a rank with these parameters
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

/// The placement as text: the grid, the ranks of each host, and for each axis whether its groups stay inside a host
/// or cross hosts (how many groups cross, max hosts per group). host_of_rank has one name per rank.
std::string placement_report(const GridShape& shape, const std::vector<std::string>& host_of_rank);

/// The ranks of a group of the rank at `at`, in the order of the group; of a grid of any size in one process.
std::vector<int> ranks_of_group(const GridShape& shape, const GridCoordinate& at, GroupKind kind);

/// The groups of one ReplicaSet. Without sharding (shards = 1) `replicate` has no channel for bulk data.
struct DataGroups {
  Group data;       // all ranks with these parameters: gradients are reduced here. cp varies fastest
  Group shard;      // neighbours in `data` that shard parameters, gradients or moments (ZeRO)
  Group replicate;  // ranks of `data` with the same rank in their shard groups: same shard
};

/// The groups of this rank. Groups with communicators are made and freed collectively over world.
class ProcessGrid {
 public:
  /// Error(deck_error) when shape.size() is not world.size().
  ProcessGrid(const Communicator& world, const GridShape& shape, Transport transport);
  /// Plans for one rank of any grid in one process, with Group::planned. log: as there; may be null, outlives the grid.
  static ProcessGrid planned(const GridShape& shape, const GridCoordinate& at, OperationLog* log = nullptr);

  const GridShape& shape() const { return shape_; }
  const GridCoordinate& coordinate() const { return coordinate_; }
  int dp_rank() const { return coordinate_.dp; }
  int pp_rank() const { return coordinate_.pp; }
  int cp_rank() const { return coordinate_.cp; }
  int tp_rank() const { return coordinate_.tp; }

  Group& world() { return g_.world; }  // for host values only: no channel for bulk data
  /// Same (pp, tp). With ep = 1 both replica sets have the same groups.
  DataGroups& data_groups(ReplicaSet replicas) {
    return g_.data[replicas == ReplicaSet::data_parallel ? 0 : g_.data.size() - 1];
  }
  /// The groups whose ranks together own each element of these parameters once.
  std::vector<Group*> owners(ReplicaSet replicas);
  Group& data_parallel() { return g_.data.front().data; }
  Group& ep() { return g_.ep; }  // neighbours of the data-parallel group that together store all experts
  Group& tp() { return g_.tp; }  // same (dp, pp, cp): shards of the same layers
  Group& cp() { return g_.cp; }  // same (dp, pp, tp): parts of the same sequences
  // Parts of cp: neighbours, and the ranks with the same place among theirs; alone without has_parts_of_cp().
  Group& cp_all_to_all() { return g_.cp_all_to_all; }
  Group& cp_ring() { return g_.cp_ring; }
  Group& pp() { return g_.pp; }                // same (dp, cp, tp): the stages of one model
  Group& embedding() { return g_.embedding; }  // if it is tied the first and the last rank of pp; else this rank

  /// f(group, kind) for every group but the world, in one order on all ranks. Those of experts only with ep > 1.
  template <class F>
  void for_each_group(const F& f) {
    f(g_.tp, GroupKind::tp);
    f(g_.cp, GroupKind::cp);
    if (shape_.has_parts_of_cp()) {
      f(g_.cp_all_to_all, GroupKind::cp_all_to_all);
      f(g_.cp_ring, GroupKind::cp_ring);
    }
    f(g_.pp, GroupKind::pp);
    f(g_.embedding, GroupKind::embedding);
    f(g_.ep, GroupKind::ep);
    const auto of_data = [&](DataGroups& groups, GroupKind data, GroupKind shard, GroupKind replicate) {
      f(groups.data, data);
      f(groups.shard, shard);
      f(groups.replicate, replicate);
    };
    of_data(g_.data.front(), GroupKind::data, GroupKind::shard, GroupKind::replicate);
    if (g_.data.size() > 1)
      of_data(g_.data.back(), GroupKind::expert_data, GroupKind::expert_shard, GroupKind::expert_replicate);
  }

  /// Registers memory with all groups (Group::register_memory). Pipeline stages differ, so pp has no symmetric memory.
  void register_memory(const Registration& registration);

  /// placement_report of the hosts MPI names; the same text on every rank. Empty where planned.
  const std::string& placement() const { return placement_; }
  /// By rank of the world. Empty where planned.
  const std::vector<std::string>& hosts() const { return hosts_; }

 private:
  struct Groups {
    Group world;
    std::vector<DataGroups> data;  // by ReplicaSet; only one where ep = 1
    Group ep, tp, cp, cp_all_to_all, cp_ring, pp, embedding;
  };
  ProcessGrid(const GridShape& shape, const GridCoordinate& at, Groups groups);
  static Groups make_groups(const Communicator& world, const GridShape& shape, Transport transport);
  static DataGroups make_expert_groups(const Communicator& data_parallel, const GridShape& shape, Transport transport);

  GridShape shape_;
  GridCoordinate coordinate_;
  Groups g_;
  std::vector<std::string> hosts_;
  std::string placement_;
};

/// Error unless parallel%order names each axis of the grid once, and where copy engines have no symmetric memory.
void check_grid(const deck::Config& config, deck::Findings& findings);

}  // namespace nanotron::comm
