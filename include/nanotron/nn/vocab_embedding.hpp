#pragma once

// The token embedding, its rows cut over the tensor-parallel group: each rank looks up the tokens it holds,
// the sum over the group is the embedding.

#include "nanotron/comm/collectives.hpp"
#include "nanotron/tensor/device.hpp"
#include "nanotron/tensor/shard.hpp"

namespace nanotron::nn {

template <class T>
class VocabEmbedding {
 public:
  using M = master_t<T>;

  /// table (vocabulary.size(), hidden) and its gradient.
  VocabEmbedding(Range vocabulary, Matrix<const T> table, Matrix<M> gradient, comm::Group& tp)
      : vocabulary_(vocabulary), table_(table), gradient_(gradient), tp_(&tp) {}

  /// tokens (n) -> x (n, hidden), overwritten. Collective over the group.
  void forward(Device& device, Vector<const std::int32_t> tokens, Matrix<T> x) const;

  /// The gradient of the table is accumulated. No communication.
  void backward(Device& device, Vector<const std::int32_t> tokens, Matrix<const T> dx) const;

 private:
  Range vocabulary_;
  Matrix<const T> table_;
  Matrix<M> gradient_;
  comm::Group* tp_;
};

}  // namespace nanotron::nn
