#pragma once

// Rotary position embedding (RoPE) of queries and keys (kernels/attention/rotary.hpp), of a whole head or of its first
// elements; or none.

#include <vector>

#include "nanotron/deck/layer_kinds.hpp"
#include "nanotron/kernels/attention/rotary.hpp"
#include "nanotron/tensor/arena.hpp"
#include "nanotron/tensor/device.hpp"

namespace nanotron::nn {

template <class T>
class Rotation {
 public:
  using M = master_t<T>;

  Rotation() = default;  // none
  /// As model%rope_type says, for this many positions. Takes what it needs from the arena (planning or real).
  Rotation(const deck::ModelConfig& model, index_t positions, Device& device, Arena& arena);

  /// x (tokens, heads * head_dim) in place, row t at positions(t).
  void forward(Device& device, const MatrixRef<T>& x, Vector<const std::int32_t> positions) const;
  /// x (tokens, columns) += bias (columns, or none), then forward of its first `rotated` columns: in one pass.
  void forward_with_bias(Device& device, const MatrixRef<T>& x, index_t rotated, Vector<const M> bias,
                         Vector<const std::int32_t> positions) const;
  /// (positions, half of the rotated elements), see kernels/attention/rotary.hpp; empty: none.
  Matrix<const M> cosine() const { return cosine_; }
  Matrix<const M> sine() const { return sine_; }
  bool is_interleaved() const { return pairs_.interleaved; }
  /// The gradient, in place.
  void backward(Device& device, const MatrixRef<T>& dx, Vector<const std::int32_t> positions) const;

 private:
  Matrix<M> cosine_;  // (positions, rotated elements of a head / 2); empty: none
  Matrix<M> sine_;
  kernels::RotaryPairs pairs_{};
};

/// Elements of a head that are rotated: partial_rotary_factor of them, rounded down.
index_t rotated_width(const deck::ModelConfig& model);

/// Of each kind of layer. Kinds that rotate alike share tables.
template <class T>
std::vector<Rotation<T>> make_rotations(const deck::ModelConfig& model, const std::vector<deck::LayerKind>& kinds,
                                        index_t positions, Device& device, Arena& arena);

}  // namespace nanotron::nn
