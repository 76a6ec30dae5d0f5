#pragma once

// Where a model drops elements in training (kernels/dropout/random_mask.hpp), as Megatron-LM does:
//
//   hidden_dropout      the embedding's output; the outputs of attention and of the feed-forward network, with their
//                       biases, before they are added to the hidden states
//   attention_dropout   the probabilities after attention's softmax
//
// Batches that are not of training (validation, evaluation, generation) drop nothing: TokenBatch::samples are unknown.

#include "nanotron/deck/keys/model.hpp"
#include "nanotron/kernels/dropout/random_mask.hpp"
#include "nanotron/nn/attention/token_batch.hpp"
#include "nanotron/nn/linear/tensor_parallel_region.hpp"

namespace nanotron::nn {

/// Of a layer's attention; layer: its number in the model.
kernels::RandomMask probability_mask(const deck::ModelConfig& model, index_t layer, std::uint64_t seed);
/// Of a batch of training, for measurements and logs.
kernels::RandomMask probability_mask_in_training(const deck::ModelConfig& model);
/// Of the output of a block, or of the embedding (layer -1).
kernels::RandomMask output_mask(const deck::ModelConfig& model, kernels::MaskSite site, index_t layer,
                                std::uint64_t seed);
/// Whether the outputs of blocks have a mask; the key of &model that says so.
bool masks_outputs(const deck::ModelConfig& model);
inline constexpr const char* output_mask_key = "hidden_dropout";

/// A mask M of the hidden states: of their rows on this rank.
template <class T>
class RowMask {
 public:
  /// region must outlive it.
  RowMask(const kernels::RandomMask& mask, const TensorParallelRegion<T>& region) : mask_(mask), region_(&region) {}

  /// Whether there is a mask, in some batches; in this one. Else M = 1.
  bool exists() const { return mask_.threshold > 0; }
  bool is_in(const TokenBatch& batch) const { return exists() && batch.samples.are_known(); }
  /// y = factor M x + z, and y = factor M x, rounded once. y may be z, or x.
  void add(Device& device, const TokenBatch& batch, double factor, Matrix<const T> x, Matrix<const T> z,
           Matrix<T> y) const;
  void scale(Device& device, const TokenBatch& batch, double factor, Matrix<const T> x, Matrix<T> y) const;

 private:
  template <class F>
  void for_each_piece(const TokenBatch& batch, const F& f) const;

  kernels::RandomMask mask_;
  const TensorParallelRegion<T>* region_;
};

}  // namespace nanotron::nn
