#pragma once

// The gradient of a matrix that several passes over the same tokens add to (head and embedding of layers that predict
// later tokens), where the sum over tokens has fixed shards (tensor/sum_order.hpp):
//
//   dW = tree over shards s of  sum over passes d of  dW_ds
//
// A rank that holds one shard adds its passes to dW. A rank that holds several keeps a sum for each, here.

#include "nanotron/nn/linear/linear.hpp"
#include "nanotron/tensor/device.hpp"
#include "nanotron/tensor/sum_order.hpp"

namespace nanotron::nn {

template <class T>
class ShardGradients {
 public:
  using M = master_t<T>;

  /// None are kept: passes add to the gradient itself.
  ShardGradients() = default;
  /// memory (shards of the tokens on this rank, elements of matrix and bias).
  ShardGradients(const SumOrder& tokens, Matrix<M> memory) : tokens_(tokens), memory_(memory) {}

  bool is_empty() const { return memory_.extent(0) == 0; }
  int shards() const { return static_cast<int>(memory_.extent(0)); }
  /// Of this rank's tokens.
  Range tokens_of(int shard) const { return tokens_.terms(0, shard); }

  /// Before the first pass.
  void clear(Device& device) const;
  /// (rows, columns): the sum of a shard. A bias follows it in `of`.
  Matrix<M> of(int shard, index_t rows, index_t columns) const { return Matrix<M>(of(shard).data(), rows, columns); }
  /// `whole` with gradients that are the sums of a shard.
  LinearWeights<T> of(int shard, const LinearWeights<T>& whole) const;
  /// After the last pass: gradients += the tree over the shards, which is overwritten.
  void add_to(Device& device, const Matrix<M>& gradient, const Vector<M>& bias_gradient) const;

 private:
  Vector<M> of(int shard) const {
    const auto elements = static_cast<index_t>(memory_.extent(1));
    return Vector<M>(memory_.data() + shard * elements, elements);
  }

  SumOrder tokens_{};
  Matrix<M> memory_{};
};

}  // namespace nanotron::nn
