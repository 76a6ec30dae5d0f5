#pragma once

// What a rank of a shard group stores of parameters, gradients and moments (ZeRO, Rajbhandari et al. 2020, section 5;
// FSDP, Zhao et al. 2023, section 3). Rank r of the group owns shard r of every unit. 1-D parameters are
// replicated. Elements for V of 1-D parameters and Q of 2-D parameters, over S ranks:
//
//   stage   master weights, fp32 or fp64     weights that GEMMs read    gradients            moments
//   0       V + Q                            V + Q                      V + Q                2 (V + Q)
//   1       V + Q / S where GEMMs read       V + Q                      V + Q                2 (V + Q / S)
//   2         a narrower type, else V + Q    V + Q                      V + Q / S + slots    2 (V + Q / S)
//   3       V + Q / S                        slots                      V + Q / S + slots    2 (V + Q / S)
//
// (ComputeWeights::codes with S = 1: what GEMMs read is embedding, head and one layer.)
// slots = max(embedding, head) + 2 layers: embedding and head share one slot, the layers alternate between two, so
// that the transfer of one layer overlaps the computation of its neighbour. Experts have two slots more, and an S of
// their own: the size of their shard group.

#include "nanotron/comm/group.hpp"
#include "nanotron/model/parameters/parameter_table.hpp"

namespace nanotron::model {

/// Where backward leaves the gradients of a unit: as the table above says for the stage; or, for
/// parallel/reducers/layout_invariant,
///   in_slots   in a slot, reduced after each micro-batch
///   in_sums    layers in the reduced gradient, which one GEMM of a micro-batch adds to; other units in slots. Of a
///              section of one rank, without ZeRO
///   apart      in a buffer of the unit's own, reduced after several micro-batches
enum class UnitGradients { by_stage, in_slots, in_sums, apart };

/// Sharding of one section.
struct SectionSharding {
  comm::Group* group = &comm::alone();  // shard group of its 2-D parameters
  int gradients = 1;  // gradients per unit, contiguous: one per sequence that its ranks receive at once
};

/// ZeRO stage, and the shard group of each section.
struct Sharding {
  int stage = 0;
  UnitGradients gradients = UnitGradients::by_stage;
  comm::PerReplicaSet<SectionSharding> sections{};

  const SectionSharding& of(comm::ReplicaSet replicas) const { return sections[replicas]; }
  int size(comm::ReplicaSet replicas = comm::ReplicaSet::data_parallel) const { return of(replicas).group->size(); }
  int rank(comm::ReplicaSet replicas = comm::ReplicaSet::data_parallel) const { return of(replicas).group->rank(); }
};

/// Whether GEMMs read the master weights, a copy in a narrower type, or such a copy of what is outside the layers and
/// codes of the layers (src/model/layers/fp8_weights.hpp): on one rank all layers then share one layer's buffer, from
/// which codes are made. Only dense layers have codes: routers and experts use bf16.
enum class ComputeWeights { master, narrower, codes };

nn::ParameterLayouts parameter_layouts(const ParameterTable& table, const Sharding& sharding, ComputeWeights compute);

/// Range in the flat space of a rank's shard of a unit over `size` ranks; and of this rank's shard.
Range shard_of(const Unit& unit, int size, int rank);
Range shard_of(const Unit& unit, const Sharding& sharding);

/// The slot that a unit shares with others: 0 for embedding and head, 1 or 2 for layers, 3 or 4 for their experts.
inline constexpr std::size_t unit_slots = 5;
std::size_t slot_of(const ParameterTable& table, index_t unit);

/// What this rank owns: over the shard group each element is owned once.
nn::BufferLayout owned_layout(const ParameterTable& table, const Sharding& sharding);

}  // namespace nanotron::model
