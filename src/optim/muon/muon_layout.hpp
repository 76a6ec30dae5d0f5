#pragma once

// How Muon assembles the matrices of a layer's unit, which are sharded over the tensor-parallel group and, as one flat
// unit, over the shard group; and which rank orthogonalises which matrix. A pure function of the deck: the same on all
// of these ranks.

#include <vector>

#include "nanotron/model/parameters/parameter_table.hpp"

namespace nanotron::optim {

/// What one tensor-parallel rank owns of a matrix: rows x columns, packed, at `offset` of its unit. In the logical
/// matrix it is the block at (row, column).
struct MatrixShard {
  index_t offset = 0;
  index_t rows = 0, columns = 0;
  index_t row = 0, column = 0;
};

struct HiddenMatrix {
  std::string name;
  index_t rows = 0, columns = 0;  // logical
  double fan_in_ratio = 1.0;      // see model/parameters/parametrization.hpp
  index_t at = 0;                 // offset in the buffer of whole matrices of a layer
  int tp_owner = 0, shard_owner = 0;
  std::vector<MatrixShard> shards;  // per tensor-parallel rank
};

struct MuonLayout {
  std::vector<HiddenMatrix> matrices;
  index_t unit_size = 0;   // elements of the unit, max over the tensor-parallel ranks
  index_t whole_size = 0;  // buffer elements for all whole matrices, each padded to a multiple of 64
  index_t workspace = 0;   // elements for the largest orthogonalisation
};

/// For one layer unit of the section with these replicas. model is resolved and its layers are alike; layout.tp_rank
/// and layout.layers are ignored.
MuonLayout muon_layout(const deck::ModelConfig& model, model::TableLayout layout, comm::ReplicaSet replicas);

/// Whether a tensor is a 2-D parameter of the layers with this replica set, and stored on this rank.
bool is_matrix_of(comm::ReplicaSet replicas, const nn::ParameterSpec& spec);

}  // namespace nanotron::optim
