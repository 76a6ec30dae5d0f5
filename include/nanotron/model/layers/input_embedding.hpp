#pragma once

// What the first layer reads, of a token at a position:
//
//   x = embedding_multiplier E[token] + P[position]      P: learned positions, where the model has them
//   x <- norm(x)                                         with embedding_norm (BLOOM)
//   x <- random mask of x                                in training (nn/dropout/dropout.hpp)
//
// Tables are sharded over the tensor-parallel group, the norm works on the rows of the hidden states on this rank.

#include <memory>
#include <optional>
#include <vector>

#include "nanotron/model/layers/activations.hpp"
#include "nanotron/model/layers/transformer_setup.hpp"
#include "nanotron/nn/dropout/dropout.hpp"
#include "nanotron/nn/vocab/vocab_embedding.hpp"

namespace nanotron::model {

template <class T>
class InputEmbedding {
 public:
  using M = master_t<T>;

  /// Of the first of setup.stages. Takes memory for the input of the norm in each of its slots. region must outlive it.
  InputEmbedding(const TransformerSetup& setup, const ParameterTable& table, const nn::ParameterBuffers<T>& buffers,
                 const LocalSizes& sizes, nn::TensorParallelRegion<T>& region, Arena& arena);

  /// tokens (n) of the slot's micro-batch -> x (hidden_rows, h), overwritten. Collective over the tensor-parallel
  /// group, as is backward.
  void forward(Device& device, index_t slot, Vector<const std::int32_t> tokens, const nn::TokenBatch& batch,
               Matrix<T> x) const;

  /// dx: gradient of x on entry, overwritten. Weight gradients are accumulated.
  void backward(Device& device, index_t slot, Vector<const std::int32_t> tokens, const nn::TokenBatch& batch,
                Matrix<T> dx, const Workspace<T>& work) const;

 private:
  // What backward of the norm reads.
  struct NormInput {
    Matrix<T> x;
    Vector<M> statistics;
  };
  nn::VocabEmbedding<T> tokens_;
  std::optional<nn::LearnedPositions<T>> positions_;
  std::unique_ptr<const nn::Norm<T>> norm_;  // null: none
  std::vector<NormInput> norm_inputs_;       // by slot
  nn::TensorParallelRegion<T>* region_;
  bool is_frozen_;  // no gradients
  nn::RowMask<T> mask_;
};

}  // namespace nanotron::model
