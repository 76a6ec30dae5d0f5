#pragma once

// World -> data x pipeline x context x tensor parallel. The order of ranks is written in this file alone.

#include <optional>
#include <string>
#include <vector>

#include "nanotron/comm/group.hpp"

namespace nanotron::comm {

struct GridShape {
  int dp = 1, pp = 1, cp = 1, tp = 1;
  int shards = 1;  // of dp x cp ranks that hold the same parameters, neighbours in groups of so many share them
  int ep = 1;      // of these, so many neighbours share one set of experts
  std::string order = "tp-cp-pp-dp";  // innermost first: neighbours in the first axis are neighbouring ranks
  Sums tp_sums = Sums::any_order;

  int size() const { return dp * pp * cp * tp; }
  int expert_shards() const { return shards > ep ? shards / ep : 1; }  // of a shard group, those with the same experts
};

/// Of a resolved deck.
GridShape shape_of(const deck::Config& config);

struct GridCoordinate {
  int dp = 0, pp = 0, cp = 0, tp = 0;
  friend bool operator==(const GridCoordinate&, const GridCoordinate&) = default;
};

/// Pure functions, each the inverse of the other:
///   rank = c[a0] + n[a0] * (c[a1] + n[a1] * (c[a2] + n[a2] * c[a3])),  order = "a0-a1-a2-a3".
/// Error(deck_error) when order is not a permutation of tp, cp, pp, dp.
int rank_of(const GridShape& shape, const GridCoordinate& coordinate);
GridCoordinate coordinate_of(const GridShape& shape, int rank);

/// The place among the ranks that hold the same parameters.
inline int replica_of(const GridShape& shape, const GridCoordinate& c) { return c.dp * shape.cp + c.cp; }

/// The placement as text: the grid, the ranks of each host, and for each axis whether its groups stay
/// inside a host or cross hosts (how many do, and over how many hosts at most). host_of_rank has one name a rank.
std::string placement_report(const GridShape& shape, const std::vector<std::string>& host_of_rank);

/// The communicators of this rank. All of them are made and freed collectively over world.
class ProcessGrid {
 public:
  /// Error(deck_error) when shape.size() is not world.size().
  ProcessGrid(const Communicator& world, const GridShape& shape, Transport transport);

  const GridShape& shape() const { return shape_; }
  const GridCoordinate& coordinate() const { return coordinate_; }
  int dp_rank() const { return coordinate_.dp; }
  int pp_rank() const { return coordinate_.pp; }
  int cp_rank() const { return coordinate_.cp; }
  int tp_rank() const { return coordinate_.tp; }

  Group& world() { return world_; }  // for values of the host, as is model(): no memory to stage bulk data
  Group& model() { return model_; }  // same (dp, cp): one whole model, pp x tp ranks
  Group& replicas() { return replicas_; }  // same (pp, tp): the same parameters, whose gradients are summed here;
                                           // dp x cp ranks, those of one dp next to each other
  Group& shards() { return shards_; }  // of the replicas, those that share one set of parameters, gradients or moments
  Group& copies() { return copies_; }  // of the replicas, those with the same place in each such group; bulk data
                                       // moves here only where there are shards
  Group& ep() { return experts_ ? experts_->ep : alone_; }  // neighbouring replicas, who have all experts between them
  // Of the replicas, those with the same experts, and their shard groups and copies. Without ep those above.
  Group& expert_replicas() { return experts_ ? experts_->replicas : replicas_; }
  Group& expert_shards() { return experts_ ? experts_->shards : shards_; }
  Group& expert_copies() { return experts_ ? experts_->copies : copies_; }
  Group& tp() { return tp_; }              // same (dp, pp, cp): shards of one layer
  Group& cp() { return cp_; }              // same (dp, pp, tp): parts of the same sequences
  Group& pp() { return pp_; }              // same (dp, cp, tp): the stages of one model

  /// placement_report of the hosts MPI names. The same text on every rank, made in the constructor.
  const std::string& placement() const { return placement_; }

 private:
  GridShape shape_;
  GridCoordinate coordinate_;
  struct ExpertGroups {
    Group ep, replicas, shards, copies;
  };
  static std::optional<ExpertGroups> make_experts(const Communicator& replicas, const GridShape& shape,
                                                  Transport transport);

  Group world_, model_, alone_, replicas_, shards_, copies_;
  std::optional<ExpertGroups> experts_;  // where experts lie over several ranks
  Group tp_, cp_, pp_;
  std::string placement_;
};

}  // namespace nanotron::comm
