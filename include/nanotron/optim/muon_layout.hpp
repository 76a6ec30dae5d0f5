#pragma once

// How the matrices of a layer's unit, cut over tensor-parallel ranks and as a flat unit over shard ranks, come together
// for Muon, and who works on which. A pure function of the deck: the same on every rank that holds them.

#include <vector>

#include "nanotron/model/parameter_table.hpp"

namespace nanotron::optim {

/// What one tensor-parallel rank owns of a matrix: rows x columns from `offset` of its unit on, packed, being the
/// block at (row, column) of the logical matrix.
struct MatrixShard {
  index_t offset = 0;
  index_t rows = 0, columns = 0;
  index_t row = 0, column = 0;
};

struct HiddenMatrix {
  std::string name;
  index_t rows = 0, columns = 0;  // logical
  double fan_in_ratio = 1.0;      // see model/parametrization.hpp
  index_t at = 0;                 // of the whole matrices of a layer
  int tp_owner = 0, shard_owner = 0;
  std::vector<MatrixShard> shards;  // by tensor-parallel rank
};

struct MuonLayout {
  std::vector<HiddenMatrix> matrices;
  index_t unit = 0;       // elements of the largest such unit over the tensor-parallel ranks
  index_t whole = 0;      // of the whole matrices
  index_t workspace = 0;  // of the largest orthogonalisation
};

/// Of the units of layers that so held parameters make up; model is resolved, tp_rank and layers of the layout are not looked at.
MuonLayout muon_layout(const deck::ModelConfig& model, model::TableLayout layout, comm::Holders holders);

/// Whether a tensor is one of the matrices of such units and is held here.
bool is_matrix_of(comm::Holders holders, const nn::ParameterSpec& spec);

}  // namespace nanotron::optim
