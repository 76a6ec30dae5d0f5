#pragma once

// How an optimizer of whole matrices assembles those of a layer's unit, which are sharded over the tensor-parallel
// group, except whole experts, and, as one flat unit, over the shard group; and which rank computes with which matrix.
// A pure function of the deck: the same on all of these ranks.

#include <string>
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
  index_t rows = 0, columns = 0;    // logical
  double fan_in_ratio = 1.0;        // see model/parameters/parametrization.hpp
  index_t at = 0;                   // offset in the buffer of whole matrices of a layer
  int place = 0;                    // see MatrixLayout::owner
  std::vector<MatrixShard> shards;  // per tensor-parallel rank
};

/// Ranks of the tensor-parallel and of the shard group.
struct MatrixOwner {
  int tp = 0, shard = 0;
};

struct MatrixLayout {
  std::vector<HiddenMatrix> matrices;
  index_t unit_size = 0;   // elements of the unit, max over the tensor-parallel ranks
  index_t whole_size = 0;  // buffer elements for all whole matrices, each padded to a multiple of 64
  int tp_size = 1, shards = 1;

  /// Ranks take turns from layer to layer, so that each owns about as many matrices.
  MatrixOwner owner(const HiddenMatrix& matrix, std::size_t layer) const;
};

/// Work of a matrix, up to a constant factor.
using MatrixWork = double (*)(index_t rows, index_t columns);

/// For one layer unit of the section with these replicas. model is resolved and its layers are alike; layout.tp_rank
/// and layout.layers are ignored. shards: ranks of the shard group, which may be fewer than layout.shards.
MatrixLayout matrix_layout(const deck::ModelConfig& model, model::TableLayout layout, comm::ReplicaSet replicas,
                           int shards, MatrixWork work);

/// Whether a tensor is a 2-D parameter of the layers with this replica set, and stored on this rank.
bool is_matrix_of(comm::ReplicaSet replicas, const nn::ParameterSpec& spec);

}  // namespace nanotron::optim
