#pragma once

// The device mesh: the groups of a rank in a grid (comm/grid_shape.hpp).

#include <string>
#include <vector>

#include "nanotron/comm/grid_shape.hpp"
#include "nanotron/comm/group.hpp"
#include "nanotron/comm/host_map.hpp"
#include "nanotron/deck/checks/findings.hpp"

namespace nanotron::comm {

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
  /// Same (pp, tp); of whole experts same pp. Without has_expert_groups() both replica sets have the same groups.
  DataGroups& data_groups(ReplicaSet replicas) {
    return g_.data[replicas == ReplicaSet::data_parallel ? 0 : g_.data.size() - 1];
  }
  /// The groups whose ranks, with those of tp, together own each element of these parameters once, if only ranks with
  /// may_own() own any.
  std::vector<Group*> owners(ReplicaSet replicas);
  bool may_own(ReplicaSet replicas);
  Group& data_parallel() { return g_.data.front().data; }
  Group& ep() { return g_.ep; }  // neighbours among the expert ranks that together store all experts
  // Parts of ep: the ranks with the same place in each of its nodes, and those of this node; alone without
  // has_parts_of_ep().
  Group& ep_across() { return g_.ep_across; }
  Group& ep_within() { return g_.ep_within; }
  Group& tp() { return g_.tp; }  // same (dp, pp, cp): shards of the same layers
  Group& cp() { return g_.cp; }  // same (dp, pp, tp): parts of the same sequences
  // Parts of cp: neighbours, and the ranks with the same place among theirs; alone without has_parts_of_cp().
  Group& cp_all_to_all() { return g_.cp_all_to_all; }
  Group& cp_ring() { return g_.cp_ring; }
  Group& pp() { return g_.pp; }                // same (dp, cp, tp): the stages of one model
  Group& embedding() { return g_.embedding; }  // if it is tied the first and the last rank of pp; else this rank

  /// f(group, kind) for every group but the world, in one order on all ranks. Those of experts only where they have
  /// groups of their own.
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
    if (shape_.has_parts_of_ep()) {
      f(g_.ep_across, GroupKind::ep_across);
      f(g_.ep_within, GroupKind::ep_within);
    }
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

  const HostMap& hosts() const { return hosts_; }  // of the ranks of the world; empty where planned
  std::string placement() const { return placement_report(shape_, hosts_); }
  const Communicator& node() const { return g_.node; }  // ranks that share memory with this one; none where planned

 private:
  struct Groups {
    Group world;
    std::vector<DataGroups> data;  // by ReplicaSet; only one without has_expert_groups()
    Group ep, ep_across, ep_within, tp, cp, cp_all_to_all, cp_ring, pp, embedding;
    Communicator node;
  };
  ProcessGrid(const GridShape& shape, const GridCoordinate& at, Groups groups);
  static Groups make_groups(const Communicator& world, const GridShape& shape, Transport transport);

  GridShape shape_;
  GridCoordinate coordinate_;
  Groups g_;
  HostMap hosts_;
};

/// Error unless parallel%order names each axis of the grid once, and where copy engines have no symmetric memory.
void check_grid(const deck::Config& config, deck::Findings& findings);

}  // namespace nanotron::comm
