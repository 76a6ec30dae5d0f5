#pragma once

// Learned absolute positions (GPT-2): a vector of each position, added to the embedding of its token. The table's rows
// are cut over the tensor-parallel group as the vocabulary's: each rank adds those that it holds to its part of the sum
// that is the embedding, so that they are in it once.

#include "nanotron/tensor/device.hpp"
#include "nanotron/tensor/shard.hpp"

namespace nanotron::nn {

template <class T>
class PositionEmbedding {
 public:
  using M = master_t<T>;

  /// table (positions.size(), hidden) and its gradient. token_segments: as of VocabEmbedding.
  PositionEmbedding(Range positions, Matrix<const T> table, Matrix<M> gradient, index_t token_segments = 1)
      : positions_(positions), table_(table), gradient_(gradient), token_segments_(token_segments) {}

  /// at (n): the position of each token. x (n, hidden) += this rank's vectors.
  void forward(Device& device, Vector<const std::int32_t> at, Matrix<T> x) const;

  /// dx (n, hidden). The gradient of the table is accumulated.
  void backward(Device& device, Vector<const std::int32_t> at, Matrix<const T> dx) const;

 private:
  Range positions_;
  Matrix<const T> table_;
  Matrix<M> gradient_;
  index_t token_segments_;
};

}  // namespace nanotron::nn
