#include "nanotron/model/layers/input_embedding.hpp"

#include "nanotron/base/types.hpp"
#include "nanotron/kernels/elementwise/elementwise.hpp"
#include "transformer_parts.hpp"

namespace nanotron::model {

template <class T>
nn::VocabEmbedding<T> make_token_lookup(const TransformerSetup& setup, const ParameterTable& table,
                                        const nn::ParameterBuffers<T>& buffers) {
  const nn::ParameterSpec& spec = table["model/embed_tokens/weight"];
  return nn::VocabEmbedding<T>(table.vocabulary, buffers.weight(spec, 0, spec.local_rows()),
                               buffers.weight_gradient(spec, 0, spec.local_rows()),
                               detail::orders_of(setup).sequence.shards_on_rank, setup.model.embedding_multiplier);
}

namespace {

template <class T>
std::optional<nn::LearnedPositions<T>> make_positions(const TransformerSetup& setup, const ParameterTable& table,
                                                      const nn::ParameterBuffers<T>& buffers) {
  if (!setup.model.has_learned_positions()) return std::nullopt;
  const nn::ParameterSpec& spec = table["model/embed_positions/weight"];
  return nn::LearnedPositions<T>(table.positions, buffers.weight(spec, 0, spec.local_rows()),
                                 buffers.weight_gradient(spec, 0, spec.local_rows()),
                                 detail::orders_of(setup).sequence.shards_on_rank);
}

}  // namespace

template <class T>
InputEmbedding<T>::InputEmbedding(const TransformerSetup& setup, const ParameterTable& table,
                                  const nn::ParameterBuffers<T>& buffers, const LocalSizes& s,
                                  nn::TensorParallelRegion<T>& region, Arena& arena)
    : tokens_(make_token_lookup(setup, table, buffers)),
      positions_(make_positions(setup, table, buffers)),
      region_(&region),
      is_frozen_(table.has_frozen()),
      mask_(nn::output_mask(setup.model, kernels::MaskSite::embedding, -1, setup.seed), region) {
  if (!setup.model.embedding_norm) return;
  norm_ = detail::make_norm(setup.model, table, buffers, "model/embed_norm/", 0, detail::orders_of(setup).tokens);
  for (index_t slot = 0; slot < setup.stages.front().slots; ++slot) {
    const auto x = arena.take<T>(MemoryKind::activations, s.hidden_rows, s.hidden);
    norm_inputs_.push_back({x, arena.take<M>(MemoryKind::activations, s.hidden_rows * s.norm.statistics)});
  }
}

template <class T>
void InputEmbedding<T>::forward(Device& device, index_t slot, Vector<const std::int32_t> tokens,
                                const nn::TokenBatch& batch, Matrix<T> x) const {
  const auto of_slot = static_cast<std::size_t>(slot);
  const Matrix<T> sum = norm_ ? Matrix<T>(norm_inputs_[of_slot].x.data(), x.extent(0), x.extent(1)) : x;
  const Matrix<T> part = region_->partial_sum(sum);
  tokens_.forward(device, tokens, part);
  if (positions_) positions_->forward(device, batch.positions, part);
  region_->start_sum(device, sum).wait();
  if (norm_) norm_->forward(device, {sum}, x, norm_inputs_[of_slot].statistics, {});
  if (mask_.is_in(batch)) mask_.scale(device, batch, 1.0, x, x);
}

template <class T>
void InputEmbedding<T>::backward(Device& device, index_t slot, Vector<const std::int32_t> tokens,
                                 const nn::TokenBatch& batch, Matrix<T> dx, const Workspace<T>& work) const {
  if (is_frozen_) return;
  if (mask_.is_in(batch)) mask_.scale(device, batch, 1.0, dx, dx);
  if (norm_) {
    const NormInput& of_slot = norm_inputs_[static_cast<std::size_t>(slot)];
    kernels::copy_matrix<T>(device, Matrix<const T>(dx), work.dn);
    kernels::fill<T>(device, flat(dx), 0.0);
    norm_->backward(device, work.dn, of_slot.x, of_slot.statistics, dx, work.sums);
  }
  const Matrix<const T> all_dx = region_->gather(device, dx);
  tokens_.backward(device, tokens, all_dx);
  if (positions_) positions_->backward(device, batch.positions, all_dx);
}

NANOTRON_INSTANTIATE_CLASS(InputEmbedding)

#define NANOTRON_INSTANTIATE(T)                                                                    \
  template nn::VocabEmbedding<T> make_token_lookup(const TransformerSetup&, const ParameterTable&, \
                                                   const nn::ParameterBuffers<T>&);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::model
