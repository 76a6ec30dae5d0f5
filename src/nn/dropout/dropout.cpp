#include "nanotron/nn/dropout/dropout.hpp"

#include "nanotron/base/types.hpp"
#include "nanotron/kernels/dropout/random_mask.hpp"
#include "nanotron/kernels/elementwise/elementwise.hpp"

namespace nanotron::nn {

kernels::RandomMask probability_mask(const deck::ModelConfig& model, index_t layer, std::uint64_t seed) {
  return kernels::random_mask(model.attention_dropout, kernels::MaskSite::probabilities, layer, seed);
}

kernels::RandomMask probability_mask_in_training(const deck::ModelConfig& model) {
  kernels::RandomMask mask = probability_mask(model, 0, 0);
  mask.samples = {.first = 0};
  return mask;
}

kernels::RandomMask output_mask(const deck::ModelConfig& model, kernels::MaskSite site, index_t layer,
                                std::uint64_t seed) {
  return kernels::random_mask(model.hidden_dropout, site, layer, seed);
}

bool masks_outputs(const deck::ModelConfig& model) { return model.hidden_dropout > 0.0; }

// f(mask, tokens, first row, number of rows) for the rows of each chunk of the hidden states.
template <class T>
template <class F>
void RowMask<T>::for_each_piece(const TokenBatch& batch, const F& f) const {
  kernels::RandomMask mask = mask_;
  mask.samples = batch.samples;
  for (const HeldTokens& piece : region_->held_tokens()) {
    f(mask, kernels::TokenRows{piece.first_token, batch.filled.shard}, piece.rows.begin, piece.rows.size());
  }
}

template <class T>
void RowMask<T>::add(Device& device, const TokenBatch& batch, double factor, Matrix<const T> x, Matrix<const T> z,
                     Matrix<T> y) const {
  if (!is_in(batch)) return kernels::add_scaled<T>(device, factor, x, z, y);
  for_each_piece(
      batch, [&](const kernels::RandomMask& mask, const kernels::TokenRows& tokens, index_t first, index_t n) {
        kernels::add_masked<T>(device, mask, tokens, factor, MatrixRef<const T>(x).row_block(first, n),
                               MatrixRef<const T>(z).row_block(first, n), MatrixRef<T>(y).row_block(first, n));
      });
}

template <class T>
void RowMask<T>::scale(Device& device, const TokenBatch& batch, double factor, Matrix<const T> x, Matrix<T> y) const {
  if (!is_in(batch)) return kernels::scale<T>(device, factor, x, y);
  for_each_piece(batch,
                 [&](const kernels::RandomMask& mask, const kernels::TokenRows& tokens, index_t first, index_t n) {
                   kernels::scale_masked<T>(device, mask, tokens, factor, MatrixRef<const T>(x).row_block(first, n),
                                            MatrixRef<T>(y).row_block(first, n));
                 });
}

NANOTRON_INSTANTIATE_CLASS(RowMask)

}  // namespace nanotron::nn
