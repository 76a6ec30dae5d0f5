#pragma once

// The decoder-only transformer: embedding, layers, final norm and head. Forward runs through; backward is
// offered in pieces from the last parameter to the first, so that whoever drives it can send off the
// gradients that are complete (those at and behind table().layer_begin(l) after backward_layer(l)).
//
// Every function is collective over the tensor-parallel group given to the constructor.

#include <memory>
#include <vector>

#include "nanotron/model/decoder_layer.hpp"
#include "nanotron/nn/vocab_embedding.hpp"

namespace nanotron::model {

/// What a model is built for. model is resolved: no size is 0.
struct TransformerSetup {
  deck::ModelConfig model;
  deck::Recompute recompute = deck::Recompute::none;
  Purpose purpose = Purpose::training;
  index_t sequences = 0;   // of a micro-batch
  index_t length = 0;      // tokens of a sequence
  index_t key_length = 0;  // most keys a query meets: length, or a cache's capacity
  deck::TpMode tp_mode = deck::TpMode::all_reduce;
  int tp_size = 1;         // the tensor-parallel group: its communicator is only talked to by the
  int tp_rank = 0;         // functions below, so that one process can plan for a rank of any grid
};

template <class T>
class Transformer {
 public:
  using M = master_t<T>;

  /// Takes all its memory from the arena (planning or real). tp and device must outlive it.
  Transformer(const TransformerSetup& setup, comm::Group& tp, Device& device, Arena& arena);

  const deck::ModelConfig& config() const { return setup_.model; }
  const ParameterTable& table() const { return table_; }
  const nn::ParameterBuffers<T>& parameters() const { return buffers_; }
  const nn::TokenBatch& batch() const { return batch_; }

  /// Rounds the master weights to what products read. After every change of the master weights.
  void refresh_compute_weights();

  /// inputs (tokens) -> the final norm's output, kept here.
  void forward(Vector<const std::int32_t> inputs);

  /// Behind forward: loss of each token (tokens), overwritten; the same on every rank of the group.
  void loss(Vector<const std::int32_t> targets, Vector<double> loss_rows);

  /// Behind forward: the same, and the gradient of scale * (sum of losses) down to the last layer's output.
  void loss_backward(Vector<const std::int32_t> targets, double scale, Vector<double> loss_rows);
  /// For l = layers - 1, ..., 0. Then the embedding.
  void backward_layer(index_t layer);
  void backward_embedding(Vector<const std::int32_t> inputs);

  /// Sums the gradients in this range of the flat buffer that are partial within the group (head norms;
  /// key-value heads held by several ranks; norms of a split stream). Once per step, when the last micro-batch
  /// has completed the range.
  void sum_partial_gradients(const FlatRange& range);

  /// Generation: inputs are batch.tokens() tokens at batch.positions behind `past` cached ones; the rows of
  /// `last` (batch.sequences, local vocabulary) receive the logits behind each sequence's last token.
  void forward_cached(const nn::TokenBatch& batch, index_t past, Vector<const std::int32_t> inputs,
                      const std::vector<nn::KeyValueCache<T>>& caches, Matrix<T> last);

 private:
  void sum_partial_gradient(const nn::ParameterSpec& spec, index_t offset);

  TransformerSetup setup_;
  comm::Group* tp_;
  Device* device_;
  ParameterTable table_;
  nn::ParameterBuffers<T> buffers_;
  nn::TokenBatch batch_;
  nn::AttentionGeometry<T> geometry_;
  std::unique_ptr<nn::ResidualStream<T>> stream_;
  Activations<T> act_;
  Vector<M> partial_;  // one logical key or value projection, where heads are shared
  NormWeights<T> final_norm_;
  nn::VocabEmbedding<T> embedding_;
  nn::VocabLoss<T> head_;
  std::vector<DecoderLayer<T>> layers_;
};

}  // namespace nanotron::model
