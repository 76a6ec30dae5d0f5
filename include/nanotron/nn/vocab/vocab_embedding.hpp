#pragma once

// The token embedding, its rows cut over the tensor-parallel group: each rank looks up the tokens it holds,
// the sum over the group is the embedding.

#include "nanotron/tensor/device.hpp"
#include "nanotron/tensor/shard.hpp"

namespace nanotron::nn {

template <class T>
class VocabEmbedding {
 public:
  using M = master_t<T>;

  /// table (vocabulary.size(), hidden) and its gradient.
  /// token_segments: of the sum over tokens (kernels/vocab/embedding.hpp).
  VocabEmbedding(Range vocabulary, Matrix<const T> table, Matrix<M> gradient, index_t token_segments = 1)
      : vocabulary_(vocabulary), table_(table), gradient_(gradient), token_segments_(token_segments) {}

  /// tokens (n) -> this rank's part of x (n, hidden), overwritten.
  void forward(Device& device, Vector<const std::int32_t> tokens, Matrix<T> x) const;

  /// dx (n, hidden). The gradient of the table is accumulated.
  void backward(Device& device, Vector<const std::int32_t> tokens, Matrix<const T> dx) const;

 private:
  Range vocabulary_;
  Matrix<const T> table_;
  Matrix<M> gradient_;
  index_t token_segments_;
};

}  // namespace nanotron::nn
