#pragma once

// Where a rank keeps parameters, gradients and moments when a shard group shares them (ZeRO, Rajbhandari et al. 2020,
// section 5; FSDP, Zhao et al. 2023, section 3). Piece r of every unit belongs to rank r of the group; 1-D parameters
// stay whole on every rank. V elements of these, Q of matrices, over S ranks:
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

/// Where backward leaves the gradients of a unit. By stage; or, of parallel/reducers/layout_invariant, which adds them to
/// what it keeps of the sum, after each micro-batch from a slot, or after several from a place of their own.
enum class UnitGradients { by_stage, in_slots, apart };

/// Of a section.
struct SectionSharding {
  comm::Group* group = &comm::alone();  // the ranks that share one set of its matrices
  int gradients = 1;  // of each unit, one after the other: of each sequence that comes to its ranks at once
};

/// Which ranks share the matrices of each section, and what of these.
struct Sharding {
  int stage = 0;
  UnitGradients gradients = UnitGradients::by_stage;
  SectionSharding dense{}, experts{};  // experts: within the other's group, or of one rank

  const SectionSharding& of(comm::Holders holders) const {
    return holders == comm::Holders::data_parallel ? dense : experts;
  }
  int size(comm::Holders holders = comm::Holders::data_parallel) const { return of(holders).group->size(); }
  int rank(comm::Holders holders = comm::Holders::data_parallel) const { return of(holders).group->rank(); }
};

/// Whether products read a type of their own or the master weights.
enum class ComputeWeights { master, narrower };

nn::ParameterLayouts parameter_layouts(const ParameterTable& table, const Sharding& sharding, ComputeWeights compute);

/// A rank's piece of a unit that `size` ranks share, in the flat space; and this rank's.
Range piece_of(const Unit& unit, int size, int rank);
Range piece_of(const Unit& unit, const Sharding& sharding);

/// The slot a unit takes in turn with others: 0 for embedding and head, 1 or 2 for layers, 3 or 4 for their experts.
inline constexpr std::size_t unit_slots = 5;
std::size_t slot_of(const ParameterTable& table, index_t unit);

/// What a rank answers for of what its group holds: each element once.
nn::BufferLayout owned_layout(const ParameterTable& table, const Sharding& sharding);

}  // namespace nanotron::model
