#pragma once

// Parameters as one rank sees them: a flat buffer of its local shards, and for each name where in it the
// local matrix lies and which part of the logical tensor that is.

#include <string>
#include <vector>

#include "nanotron/comm/process_grid.hpp"
#include "nanotron/nn/parameters/buffer_layout.hpp"
#include "nanotron/tensor/arena.hpp"
#include "nanotron/tensor/shard.hpp"
#include "nanotron/tensor/tensor.hpp"

namespace nanotron::nn {

/// Which dimension of a weight W (out, in) is sharded over the tensor-parallel group (Shoeybi et al. 2019, section 3).
enum class Partition {
  replicated,
  column_parallel,  // out: rows of W, columns of y = x W^T
  row_parallel,     // in: columns of W; y is a partial sum
};

enum class Initial { normal, ones, zeros };

/// One logical tensor (layers, rows, columns). A vector has columns = 1 and is_vector set; a tensor that is
/// not stacked over layers has layers = 1 and is_stacked unset.
struct ParameterSpec {
  std::string name;  // as in a checkpoint: model/layers/self_attn/q_proj/weight
  index_t layers = 1;  // of the whole model
  index_t rows = 0;
  index_t columns = 1;
  bool is_stacked = false;
  bool is_vector = false;

  comm::Holders holders = comm::Holders::data_parallel;  // of the same part
  Partition partition = Partition::replicated;
  Range local{};  // of the cut dimension: what this rank computes with
  Range owned{};  // subset of local that this rank answers for in norms and checkpoints; the owned parts of
                  // a group cover the tensor exactly once. Partition::replicated: counts along rows.
  bool gradient_is_partial = false;  // ranks that hold the same element hold partial sums of its gradient

  Initial initial = Initial::normal;
  double deviation = 0.0;  // of Initial::normal
  bool decays = false;     // weight decay applies
  double fan_in_ratio = 1.0;  // over that of the base width, see model/parametrization.hpp

  std::vector<index_t> layer_numbers{0};  // of the layers held here, as they lie in the flat buffers; empty: none
  index_t offset = 0;                     // of the first of them, in elements
  index_t layer_stride = 0;               // from one to the next

  index_t local_rows() const { return partition == Partition::row_parallel ? rows : local.size(); }
  index_t local_columns() const { return partition == Partition::row_parallel ? local.size() : columns; }
  index_t local_size() const { return local_rows() * local_columns(); }
  index_t logical_size() const { return layers * rows * columns; }
  index_t local_layers() const { return static_cast<index_t>(layer_numbers.size()); }
  index_t offset_of(index_t local_layer) const { return offset + local_layer * layer_stride; }
};

/// Where a rank keeps what of the flat space.
struct ParameterLayouts {
  BufferLayout master;
  BufferLayout compute;      // what products read
  BufferLayout gradient;     // where backward accumulates
  BufferLayout reduced;      // in the same buffer: what this rank has of the sum over replicas
  BufferLayout moments;      // what the optimizer updates here
  index_t gradient_end = 0;  // elements of the buffer, where gradients have more than one place
};

/// The flat buffers. compute is what products read: the master weights themselves, or their copy rounded to
/// T where T is narrower, or where a rank holds a part of the master weights only. gradient is of the master type.
template <class T>
struct ParameterBuffers {
  using M = master_t<T>;
  ParameterLayouts layouts;
  Vector<M> master;
  Vector<M> gradient;
  Vector<T> compute;

  ParameterBuffers(Arena& arena, ParameterLayouts where)
      : layouts(std::move(where)),
        master(arena.take<M>(MemoryKind::parameters, layouts.master.size())),
        gradient(arena.take<M>(MemoryKind::gradients,
                               std::max({layouts.gradient.size(), layouts.reduced.size(), layouts.gradient_end}))) {
    if constexpr (std::is_same_v<T, M>) {
      if (layouts.compute == layouts.master) {
        compute = master;
        return;
      }
    }
    compute = arena.take<T>(MemoryKind::parameters, layouts.compute.size());
  }

  /// Views are null while planning: never dereferenced then.
  Matrix<const T> weight(const ParameterSpec& p, index_t layer, index_t fused_rows) const {
    return Matrix<const T>(at(compute, layouts.compute, p.offset_of(layer)), fused_rows, p.local_columns());
  }
  Matrix<M> weight_gradient(const ParameterSpec& p, index_t layer, index_t fused_rows) const {
    return Matrix<M>(at(gradient, layouts.gradient, p.offset_of(layer)), fused_rows, p.local_columns());
  }
  Vector<const M> vector(const ParameterSpec& p, index_t layer, index_t fused_rows) const {
    return Vector<const M>(at(master, layouts.master, p.offset_of(layer)), fused_rows);
  }
  Vector<M> vector_gradient(const ParameterSpec& p, index_t layer, index_t fused_rows) const {
    return Vector<M>(at(gradient, layouts.gradient, p.offset_of(layer)), fused_rows);
  }

 private:
  template <class U>
  static U* at(const Vector<U>& flat, const BufferLayout& place, index_t offset) {
    return flat.extent(0) == 0 || flat.data() == nullptr ? nullptr : flat.data() + place.at(offset);
  }
};

}  // namespace nanotron::nn
