#pragma once

// The parameters of one rank: a flat buffer of its local shards and, per name, the offset of the local matrix in it and
// which part of the logical tensor that is.

#include <algorithm>
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

enum class Initial { normal, uniform, ones, zeros, value };

/// One logical tensor (layers, rows, columns), of the layers that have it. A 1-D parameter has columns = 1 and is_1d
/// set; a tensor that is not stacked over layers has layers = 1 and is_stacked unset.
struct ParameterSpec {
  std::string name;                 // as in a checkpoint: model/layers/self_attn/q_proj/weight
  std::string stack{};              // for a routed expert: the name that all experts share, without the number
  index_t number = 0, numbers = 1;  // in the stack
  index_t layers = 1;               // of the whole model: rows of the stack
  index_t rows = 0;
  index_t columns = 1;
  bool is_stacked = false;
  bool is_1d = false;

  comm::ReplicaSet replicas = comm::ReplicaSet::data_parallel;  // which ranks store the same part
  Partition partition = Partition::replicated;
  Range local{};             // of the sharded dimension: what this rank computes with
  Range owned{};             // subset of local that this rank owns in norms and checkpoints; the owned parts of a
                             // tensor-parallel group cover the tensor exactly once. Partition::replicated: along rows.
  bool has_gradient = true;  // else something other than the optimizer updates it, or nothing does
  bool is_frozen = false;    // read from elsewhere and never changed: not part of a checkpoint
  bool gradient_is_partial = false;  // tensor-parallel ranks with the same element have partial sums of its gradient

  Initial initial = Initial::normal;
  double deviation = 0.0;     // of Initial::normal; of Initial::uniform, the largest |x|; of Initial::value, the value
  bool decays = false;        // weight decay applies
  double fan_in_ratio = 1.0;  // fan-in over that of the base width, see model/parameters/parametrization.hpp

  std::vector<index_t> stack_layers{};    // the layers of the model that have it, where not all do, ascending
  std::vector<index_t> layer_numbers{0};  // of the layers on this rank, in buffer order; empty: none
  index_t offset = 0;                     // of the first of these layers, in elements
  std::vector<index_t> layer_offsets{0};  // of each of them, from the first on

  index_t local_rows() const { return partition == Partition::row_parallel ? rows : local.size(); }
  index_t local_columns() const { return partition == Partition::row_parallel ? local.size() : columns; }
  index_t local_size() const { return local_rows() * local_columns(); }
  index_t logical_size() const { return layers * rows * columns; }
  index_t local_layers() const { return static_cast<index_t>(layer_numbers.size()); }
  index_t offset_of(index_t local_layer) const { return offset + layer_offsets[static_cast<std::size_t>(local_layer)]; }
  /// The row of the stack that a layer is.
  index_t stack_row(index_t local_layer) const {
    const index_t number = layer_numbers[static_cast<std::size_t>(local_layer)];
    return stack_layers.empty() ? number : std::ranges::lower_bound(stack_layers, number) - stack_layers.begin();
  }
  /// The logical index of the elements of a layer's local matrix.
  LogicalIndex logical_index(index_t local_layer) const {
    const bool by_columns = partition == Partition::row_parallel;
    return {.columns = local_columns(),
            .logical_columns = columns,
            .first = stack_row(local_layer) * rows * columns + (by_columns ? local.begin : local.begin * columns)};
  }
};

/// Frozen 2-D parameters: whole in the buffer that GEMMs read, or in shards in a buffer of their own.
enum class FrozenIn { compute, shards };
/// Layouts of the flat buffers of one rank.
struct ParameterLayouts {
  BufferLayout master;
  BufferLayout compute;   // what GEMMs read
  BufferLayout gradient;  // where backward accumulates
  BufferLayout reduced;   // in the same buffer: this rank's part of the reduced gradient (over dp x cp)
  BufferLayout moments;   // what the optimizer updates on this rank
  BufferLayout frozen{};  // 2-D parameters that never change, where GEMMs read a narrower type
  FrozenIn frozen_in = FrozenIn::compute;
  index_t gradient_end = 0;  // where unit gradients stored after the reduced ones end in the buffer; 0: none are
};

/// The flat buffers. compute is what GEMMs read: the master weights themselves, or a copy in T where T is narrower or
/// the rank stores only a part of the master weights. gradient is of the master type.
template <class T>
struct ParameterBuffers {
  using M = master_t<T>;
  ParameterLayouts layouts;
  Vector<M> master;
  Vector<M> gradient;
  Vector<T> compute;
  Vector<T> frozen;

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
    frozen = compute;
    if (layouts.frozen_in == FrozenIn::shards) frozen = arena.take<T>(MemoryKind::parameters, layouts.frozen.size());
  }

  /// f(layout, buffer) of the buffers that keep the weights, each weight once: the master weights, and those that are
  /// stored in T alone.
  template <class F>
  void for_each_stored(const F& f) const {
    f(layouts.master, master);
    f(layouts.frozen, frozen);
  }

  /// Views are null while planning: never dereferenced then.
  Matrix<const T> weight(const ParameterSpec& p, index_t layer, index_t fused_rows) const {
    return Matrix<const T>(at(compute, layouts.compute, p.offset_of(layer)), fused_rows, p.local_columns());
  }
  /// Empty for a frozen parameter.
  Matrix<M> weight_gradient(const ParameterSpec& p, index_t layer, index_t fused_rows) const {
    if (p.is_frozen) return {};
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
