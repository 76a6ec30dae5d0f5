#pragma once

// The decoder-only transformer: embedding, layers, final norm and head; or the part of it that a pipeline stage
// has: virtual stages, the first with the embedding, the last with norm and head. Forward runs through a virtual stage;
// backward is offered in pieces from the last parameter to the first, so that whoever drives it can send off the
// gradients that are complete. Activations are kept in slots, one a micro-batch between its forward and the end of
// its backward.
//
// Every function is collective over the tensor-parallel group given to the constructor, layers over the
// context-parallel group too, and over the shard group where weights have to be gathered.

#include <memory>
#include <optional>
#include <vector>

#include "nanotron/model/decoder_layer.hpp"
#include "nanotron/model/micro_batch_tokens.hpp"
#include "nanotron/model/unit_weights.hpp"
#include "nanotron/nn/moe/moe.hpp"
#include "nanotron/nn/vocab/position_embedding.hpp"
#include "nanotron/nn/vocab/vocab_embedding.hpp"

namespace nanotron::model {

/// What a model is built for. model is resolved: no size is 0.
struct TransformerSetup {
  deck::ModelConfig model;
  deck::Recompute recompute = deck::Recompute::none;
  Purpose purpose = Purpose::training;
  index_t sequences = 0;   // of a micro-batch
  index_t length = 0;      // tokens of a whole sequence
  index_t key_length = 0;  // most keys a query meets: length, or a cache's capacity
  std::vector<VirtualStage> stages{};  // ascending and apart; empty: one, all layers
  index_t hidden_gradients = 1;        // buffers for gradients of the hidden states
  Backward backward = Backward::whole;
  deck::TpMode tp_mode = deck::TpMode::all_reduce;
  nn::TpOverlap overlap{};
  comm::Group* tp = &comm::alone();  // the tensor-, context- and expert-parallel groups: outlive the model
  comm::Group* cp = &comm::alone();
  comm::Group* ep = &comm::alone();
  Sharding sharding{};     // over ranks that hold the same parameters
  int unit_pieces = 1;     // into which units divide, a multiple of the shard group's size
  deck::CpMode cp_mode = deck::CpMode::ring;
  deck::DocumentMask document_mask = deck::DocumentMask::none;
  int tensor_shards = 0;        // parts of the sums over features and heads, and over the tokens of a sequence, in the
  int norm_shards = 0;          // (of norms: deck::SumShards::hidden states)
  int context_shards = 0;       // order of tensor/sum_order.hpp; 0: those of the groups. With more than these a
                                // micro-batch is one sequence, and the device multiplies in that order
  index_t loss_tokens = 1;      // of the global batch: the router's losses are means over them

  nn::ContextShard context() const { return {cp_mode, {cp_mode, length, cp->size()}, cp->rank()}; }
};

/// The parameters that a rank has of such a model.
ParameterTable parameter_table_of(const TransformerSetup& setup);

template <class T>
struct Head {
  std::unique_ptr<const nn::Norm<T>> norm;
  nn::VocabLoss<T> loss;
};

/// Where a micro-batch has its activations.
struct Slot {
  index_t stage = 0;
  index_t index = 0;
};

template <class T>
class Transformer {
 public:
  using M = master_t<T>;

  /// Takes all its memory from the arena (planning or real). device must outlive it.
  Transformer(const TransformerSetup& setup, Device& device, Arena& arena);

  const deck::ModelConfig& config() const { return setup_.model; }
  const ParameterTable& table() const { return table_; }
  comm::Group& tensor_parallel() const { return *setup_.tp; }
  const nn::ParameterBuffers<T>& parameters() const { return buffers_; }
  /// What the routers of the layers here did since it was last set to zero, a row a layer, see
  /// kernels::add_router_sums; empty without experts.
  Matrix<double> router_sums() const { return router_sums_; }
  /// This rank's tokens of a micro-batch.
  index_t tokens() const { return micro_batches_.of(0, 0).tokens(); }

  /// Brings the master weights to where products read them, rounded. After every change of the master weights.
  /// finish_weights: before parameters() are read by others than the functions below.
  void refresh_compute_weights() { weights_.refresh(); }
  void finish_weights() { weights_.finish(); }

  index_t layers(index_t stage) const { return setup_.stages[static_cast<std::size_t>(stage)].layers.size(); }
  /// Number of the virtual stage's first layer among those held here.
  index_t first_layer(index_t stage) const;
  bool has_embedding(index_t stage) const;
  bool has_head(index_t stage) const;

  /// What the functions below move for one micro-batch of a virtual stage, embedding and head too; the weights they
  /// read not.
  LayerTraffic traffic(index_t stage) const;
  /// The sources whose weights they read, in that order: forward, and backward at once or its first part.
  std::vector<SourceUse> forward_uses(index_t stage) const;
  std::vector<SourceUse> backward_uses(index_t stage) const;
  const UnitWeights<T>& weights() const { return weights_; }

  /// The hidden states (its rows here, hidden) in front of the virtual stage and behind it; and the buffers for its
  /// gradient, called dx below.
  Matrix<T> input(const Slot& slot) const { return at(slot).residual.front(); }
  Matrix<T> output(const Slot& slot) const { return at(slot).residual.back(); }
  Matrix<T> hidden_gradient(index_t i) const { return act_.work.dx[static_cast<std::size_t>(i)]; }

  /// Where documents begin, (sequences, whole length) positions: with a document mask, before anything else is done
  /// with the slot's micro-batch.
  void set_documents(const Slot& slot, Vector<const std::int32_t> starts) {
    micro_batches_.set_documents(*device_, slot.stage, slot.index, starts);
  }
  /// For the virtual stage with the embedding: inputs (tokens) -> input(slot).
  void embed(const Slot& slot, Vector<const std::int32_t> inputs);
  /// input(slot) -> output(slot).
  void forward(const Slot& slot);

  /// For the virtual stage with the head, behind forward: loss of each token (tokens), overwritten; the same on every
  /// rank of the group.
  void loss(const Slot& slot, Vector<const std::int32_t> targets, Vector<double> loss_rows);
  /// The same, and dx <- gradient of scale * (sum of losses) at the virtual stage's output.
  void loss_backward(const Slot& slot, Vector<const std::int32_t> targets, double scale, Vector<double> loss_rows,
                     Matrix<T> dx);

  /// For layer = layers(virtual stage) - 1, ..., 0. dx: gradient of the layer's output on entry, of its input on
  /// return.
  void backward_layer(const Slot& slot, index_t layer, Matrix<T> dx);
  /// The same in two parts, see DecoderLayer; the second for any order of layers. Needs Recompute::none and
  /// Backward::two_parts.
  void backward_layer_input(const Slot& slot, index_t layer, Matrix<T> dx);
  void backward_layer_weight(const Slot& slot, index_t layer);
  /// For the virtual stage with the embedding, last: dx is the gradient of its input.
  void backward_embedding(const Slot& slot, Vector<const std::int32_t> inputs, Matrix<T> dx);

  /// Generation: inputs are batch.tokens() tokens at batch.positions behind `past` cached ones; the rows of
  /// `last` (batch.sequences, local vocabulary) receive the logits behind each sequence's last token.
  void forward_cached(const nn::TokenBatch& batch, index_t past, Vector<const std::int32_t> inputs,
                      const std::vector<nn::KeyValueCache<T>>& caches, Matrix<T> last);

 private:
  LocalSizes sizes() const;
  void look_up(Vector<const std::int32_t> inputs, Vector<const std::int32_t> positions, Matrix<T> x);
  void normalise_output(const Slot& slot);
  const StageActivations<T>& at(const Slot& slot) const {
    return act_.stages[static_cast<std::size_t>(slot.stage)][static_cast<std::size_t>(slot.index)];
  }
  const nn::TokenBatch& batch(const Slot& slot) const { return micro_batches_.of(slot.stage, slot.index); }
  const DecoderLayer<T>& layer_of(index_t stage, index_t layer) const {
    return layers_[static_cast<std::size_t>(first_layer(stage) + layer)];
  }
  index_t source_of(index_t stage, index_t layer) const { return table_.layer_unit(first_layer(stage) + layer); }
  SourceUse embedding_use(index_t stage) const { return {table_.embedding_unit(), source_of(stage, 0)}; }
  SourceUse forward_use(index_t stage, index_t layer) const;
  SourceUse head_use(index_t stage) const { return {table_.head_source(), source_of(stage, layers(stage) - 1)}; }
  SourceUse backward_use(index_t stage, index_t layer) const;

  TransformerSetup setup_;
  Device* device_;
  ParameterTable table_;
  nn::ParameterBuffers<T> buffers_;
  UnitWeights<T> weights_;
  MicroBatchTokens micro_batches_;
  nn::AttentionGeometry<T> geometry_;
  std::unique_ptr<nn::AttentionCore<T>> core_;
  std::unique_ptr<nn::HiddenStates<T>> states_;
  std::unique_ptr<nn::MoeParts<T>> moe_;
  Matrix<double> router_sums_;
  Activations<T> act_;
  std::optional<nn::VocabEmbedding<T>> embedding_;
  std::optional<nn::PositionEmbedding<T>> positions_;
  std::optional<Head<T>> head_;
  std::vector<DecoderLayer<T>> layers_;
};

}  // namespace nanotron::model
