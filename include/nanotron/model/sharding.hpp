#pragma once

// Where a rank keeps parameters, gradients and moments when replicas shard them (ZeRO, Rajbhandari et al. 2020,
// section 5; FSDP, Zhao et al. 2023, section 3). Piece r of every unit belongs to rank r of the group; vectors
// stay whole on every rank. V elements of vectors, Q of matrices, u of the largest units, over S ranks:
//
//   stage   master weights, fp32 or fp64     weights of products    gradients            moments
//   0       V + Q                            V + Q                  V + Q                2 (V + Q)
//   1       V + Q / S where products read    V + Q                  V + Q                2 (V + Q / S)
//   2         a narrower type, else V + Q    V + Q                  V + Q / S + slots    2 (V + Q / S)
//   3       V + Q / S                        slots                  V + Q / S + slots    2 (V + Q / S)
//
// slots = max(embedding, head) + 2 layers: the outer units take one in turn, layers two by turns, so that a
// layer is computed while a neighbour is on its way; their experts two of their own. S of experts: theirs.

#include "nanotron/comm/group.hpp"
#include "nanotron/model/parameter_table.hpp"

namespace nanotron::model {

/// Where backward leaves the gradients of a unit. Of parallel/reducers/ordered_sum.hpp, which adds them to what it keeps of the
/// sum, whatever the stage: after each micro-batch from a slot, or after several from a place of their own.
enum class UnitGradients { by_stage, in_slots, apart };

/// Ranks that share one set of parameters.
struct ShardGroup {
  int size = 1;                  // 1: nothing is sharded
  int rank = 0;                  // in it
  comm::Group* group = nullptr;  // talked to only where size > 1; may be null while planning
};

/// What a rank needs to know of those that hold the same parameters. Experts, of which fewer ranks hold the same, have
/// a group of their own, within this one or of one rank.
struct Sharding {
  int stage = 0;
  int size = 1;                  // as of ShardGroup
  int rank = 0;
  comm::Group* group = nullptr;
  UnitGradients gradients = UnitGradients::by_stage;
  int unit_pieces = 0;           // into which units divide, a multiple of size; 0: size
  ShardGroup experts{};
  int expert_gradients = 1;      // of an expert's unit, one behind the other: of each sequence that comes to it at once

  ShardGroup of(nn::Holders holders) const {
    return holders == nn::Holders::replicas ? ShardGroup{size, rank, group} : experts;
  }
};

/// Whether products read a type of their own or the master weights.
enum class ComputeWeights { master, narrower };

nn::ParameterPlaces parameter_places(const ParameterTable& table, const Sharding& sharding, ComputeWeights compute);

/// This rank's piece of a unit, in the flat space.
Range piece_of(const Unit& unit, const Sharding& sharding);

/// The slot a unit takes in turn with others: 0 for embedding and head, 1 or 2 for layers, 3 or 4 for their experts.
inline constexpr std::size_t unit_slots = 5;
std::size_t slot_of(const ParameterTable& table, index_t unit);

/// What a rank answers for of what its group holds: each element once.
nn::Placement answered_places(const ParameterTable& table, const Sharding& sharding);

}  // namespace nanotron::model
