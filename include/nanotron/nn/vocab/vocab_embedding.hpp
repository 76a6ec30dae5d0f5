#pragma once

// The token embedding, its rows sharded over the tensor-parallel group (vocab parallel). Each rank looks up the tokens
// in its rows and multiplies them by a constant; the sum over the group is the embedding.

#include "nanotron/nn/vocab/shard_gradients.hpp"
#include "nanotron/tensor/device.hpp"
#include "nanotron/tensor/shard.hpp"

namespace nanotron::nn {

template <class T>
class VocabEmbedding {
 public:
  using M = master_t<T>;

  /// table (vocabulary.size(), hidden) and its gradient.
  /// token_segments: number of segments in the sum over tokens (kernels/vocab/embedding.hpp).
  VocabEmbedding(Range vocabulary, Matrix<const T> table, Matrix<M> gradient, index_t token_segments, double multiplier)
      : vocabulary_(vocabulary),
        table_(table),
        gradient_(gradient),
        token_segments_(token_segments),
        multiplier_(multiplier) {}

  /// tokens (n) -> this rank's partial sum of x (n, hidden), overwritten.
  void forward(Device& device, Vector<const std::int32_t> tokens, Matrix<T> x) const;

  /// dx (n, hidden). Accumulates the gradient of the table; in `apart`, if it is not empty.
  void backward(Device& device, Vector<const std::int32_t> tokens, Matrix<const T> dx,
                const ShardGradients<T>& apart = {}) const;
  /// The gradient += that kept apart.
  void add_shards(Device& device, const ShardGradients<T>& apart) const { apart.add_to(device, gradient_, {}); }

 private:
  Range vocabulary_;
  Matrix<const T> table_;
  Matrix<M> gradient_;
  index_t token_segments_;
  double multiplier_;
};

// Learned absolute positions (GPT-2): one vector per position, added to the token embedding. The rows of the table are
// sharded over the tensor-parallel group as the vocabulary is. Each rank adds its rows to its partial sum of the
// embedding, so each position is added once.

template <class T>
class LearnedPositions {
 public:
  using M = master_t<T>;

  /// table (positions.size(), hidden) and its gradient. token_segments: as in VocabEmbedding.
  LearnedPositions(Range positions, Matrix<const T> table, Matrix<M> gradient, index_t token_segments = 1)
      : positions_(positions), table_(table), gradient_(gradient), token_segments_(token_segments) {}

  /// at (n): the position of each token. x (n, hidden) += this rank's rows of the table.
  void forward(Device& device, Vector<const std::int32_t> at, Matrix<T> x) const;

  /// dx (n, hidden). Accumulates the gradient of the table.
  void backward(Device& device, Vector<const std::int32_t> at, Matrix<const T> dx) const;

 private:
  Range positions_;
  Matrix<const T> table_;
  Matrix<M> gradient_;
  index_t token_segments_;
};

}  // namespace nanotron::nn
