#pragma once

// World -> data x pipeline x context x tensor parallel. The order of ranks is written in this file alone.

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

/// The rank in its data-parallel group.
inline int data_parallel_rank(const GridShape& shape, const GridCoordinate& c) { return c.dp * shape.cp + c.cp; }

/// The placement as text: the grid, the ranks of each host, and for each axis whether its groups stay
/// inside a host or cross hosts (how many do, and over how many hosts at most). host_of_rank has one name a rank.
std::string placement_report(const GridShape& shape, const std::vector<std::string>& host_of_rank);

/// Which ranks hold the same parameters: all of the data-parallel group or, of experts, every ep-th of it.
enum class Holders { data_parallel, expert_data_parallel };

/// The ranks with the same parameters of one kind. Where nothing is sharded no bulk data moves between replicas.
struct DataGroups {
  Group data;       // all of them: gradients are reduced here. dp x cp ranks, those of one dp next to each other
  Group shard;      // of these, neighbours that share one set of parameters, gradients or moments (ZeRO)
  Group replicate;  // of these, those with the same place in each shard group
};

/// The groups of this rank. With communicators all of them are made and freed collectively over world.
class ProcessGrid {
 public:
  /// Error(deck_error) when shape.size() is not world.size().
  ProcessGrid(const Communicator& world, const GridShape& shape, Transport transport);
  /// To plan for a rank of any grid with one process: Group::planned.
  static ProcessGrid planned(const GridShape& shape, const GridCoordinate& at);

  const GridShape& shape() const { return shape_; }
  const GridCoordinate& coordinate() const { return coordinate_; }
  int dp_rank() const { return coordinate_.dp; }
  int pp_rank() const { return coordinate_.pp; }
  int cp_rank() const { return coordinate_.cp; }
  int tp_rank() const { return coordinate_.tp; }

  Group& world() { return g_.world; }  // for values of the host, as is model(): no memory to stage bulk data
  Group& model() { return g_.model; }  // same (dp, cp): one whole model, pp x tp ranks
  /// Same (pp, tp). Without ep experts are held as all else is.
  DataGroups& data_groups(Holders holders) {
    return g_.data[holders == Holders::data_parallel ? 0 : g_.data.size() - 1];
  }
  Group& data_parallel() { return g_.data.front().data; }
  Group& ep() { return g_.ep; }  // neighbours of the data-parallel group, who have all experts between them
  Group& tp() { return g_.tp; }  // same (dp, pp, cp): shards of one layer
  Group& cp() { return g_.cp; }  // same (dp, pp, tp): parts of the same sequences
  Group& pp() { return g_.pp; }  // same (dp, cp, tp): the stages of one model

  /// placement_report of the hosts MPI names; the same text on every rank. Empty where planned.
  const std::string& placement() const { return placement_; }

 private:
  struct Groups {
    Group world, model;
    std::vector<DataGroups> data;  // by Holders; one where no experts lie over several ranks
    Group ep, tp, cp, pp;
  };
  ProcessGrid(const GridShape& shape, const GridCoordinate& at, Groups groups);
  static Groups make_groups(const Communicator& world, const GridShape& shape, Transport transport);
  static DataGroups make_expert_groups(const Communicator& data_parallel, const GridShape& shape, Transport transport);

  GridShape shape_;
  GridCoordinate coordinate_;
  Groups g_;
  std::string placement_;
};

}  // namespace nanotron::comm
