#pragma once

// The decoder-only transformer: embedding, layers, final norm and head; or the virtual stages of it that a pipeline
// rank stores: the model's first with the embedding, its last with final norm and head. Forward runs a virtual stage.
// Backward comes in pieces, from the last parameter to the first, so that the caller can reduce gradients as soon as
// they are complete. Activations are kept in slots: a micro-batch has one from its forward to the end of its backward.
// Every function is collective over the tensor-parallel group. Layers are also collective over the context-parallel
// group, and over the shard group where weights are gathered.

#include <memory>
#include <optional>
#include <vector>

#include "nanotron/model/later_tokens/later_tokens.hpp"
#include "nanotron/model/layers/decoder_layer.hpp"
#include "nanotron/model/layers/gemm_recipe.hpp"
#include "nanotron/model/layers/input_embedding.hpp"
#include "nanotron/model/layers/micro_batch_tokens.hpp"
#include "nanotron/model/layers/transformer_setup.hpp"
#include "nanotron/model/parameters/unit_weights.hpp"

namespace nanotron::model {

template <class T>
struct Head {
  std::unique_ptr<const nn::Norm<T>> norm;
  nn::VocabLoss<T> loss;
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
  index_t in_turns() const { return setup_.in_turns; }
  const nn::ParameterBuffers<T>& parameters() const { return buffers_; }
  /// Statistics of routers, summed since the caller last zeroed them: a row per layer stored here; none of dense ones.
  Matrix<double> statistics() const { return statistics_; }
  index_t tokens() const { return micro_batches_.of(0, 0).tokens(); }  // of a micro-batch on this rank
  /// Casts (where sharded, all-gathers) the master weights into the weights that GEMMs read. Call it after each change
  /// of the master weights. finish_weights: call it before anything but the functions below reads parameters().
  void refresh_compute_weights();
  Vector<bf16> compute_copy() const { return weights_.copy(); }
  void refresh_after_update(RestOfUpdate* rest = nullptr);  // as the next two: see UnitWeights
  void forget_gathered_weights(), gather_weights_in_use();
  void update_weights(index_t stage) { weights_.update(source_of(stage, layers(stage) - 1)); }
  void finish_weights() { weights_.finish(); }

  index_t layers(index_t stage) const { return setup_.stages[static_cast<std::size_t>(stage)].layers.size(); }
  index_t first_layer(index_t stage) const;  // index of the virtual stage's first layer among those stored here
  bool has_embedding(index_t stage) const, has_head(index_t stage) const;

  /// Bytes that the functions below move for one micro-batch of a virtual stage, without gathers of weights.
  LayerTraffic traffic(index_t stage) const;
  /// The sources whose weights these passes read, in order: forward; whole backward, or its two parts.
  std::vector<SourceUse> forward_uses(index_t) const, backward_uses(index_t) const, weight_uses(index_t stage) const;
  const UnitWeights<T>& weights() const { return weights_; }

  /// Hidden states (this rank's rows, h) before and after the stage; buffers for dx below, (in_turns x rows, h).
  Matrix<T> input(const Slot& slot) const { return at(slot).residual.front(); }
  Matrix<T> output(const Slot& slot) const { return at(slot).residual.back(); }
  Matrix<T> hidden_gradient(index_t i) const { return act_.work.dx[static_cast<std::size_t>(i)]; }

  /// For the slot's micro-batch; call it first. Without a call each sequence is one document without empty positions.
  void set_packing(const Slot& slot, const nn::Packing& packing) {
    micro_batches_.set_packing(*device_, slot.stage, slot.index, packing);
  }
  /// For the virtual stage with the embedding: inputs (tokens) -> input(slot).
  void embed(const Slot& slot, Vector<const std::int32_t> inputs);
  /// input(slot) -> output(slot).
  void forward(const Slot& slot);

  /// For the virtual stage with the head, after forward. losses (tokens): the loss of each token, overwritten, the
  /// same on every rank of the tensor-parallel group.
  void loss(const Slot& slot, Vector<const std::int32_t> targets, Vector<double> losses);
  /// The same, and dx <- gradient of scale * (sum of what training minimises) with respect to output(slot).
  void loss_backward(const Slot& slot, Vector<const std::int32_t> targets, double scale, const nn::LossRows& rows,
                     Matrix<T> dx);
  /// With appended layers their tokens are set before loss_backward, and these steps follow it: each adds to the
  /// gradients of one source, the last one overwrites dx.
  void set_later_tokens(const LaterTokens& tokens);
  index_t steps_after_loss() const, source_after_loss(index_t step) const;
  void backward_after_loss(const Slot& slot, index_t step, Matrix<T> dx);

  /// Call it for layer = layers(stage) - 1, ..., 0. dx: gradient of the layer's output -> of its input.
  void backward_layer(const Slot& slot, index_t layer, Matrix<T> dx);
  /// The same in two parts, see DecoderLayer; the second in any order of layers. Needs Recompute::none and
  /// Backward::two_parts.
  void backward_layer_input(const Slot& slot, index_t layer, Matrix<T> dx);
  void backward_layer_weight(const Slot& slot, index_t layer);
  /// For the stage with the embedding, last. dx: gradient of input(slot), overwritten.
  void backward_embedding(const Slot& slot, Vector<const std::int32_t> inputs, Matrix<T> dx);

  /// Generation: batch.tokens() inputs at batch.positions -> last (batch.sequences, local vocabulary), logits of the
  /// last tokens. Keys and values are added to the cache of each layer.
  void forward_cached(const nn::TokenBatch& batch, Vector<const std::int32_t> inputs,
                      const std::vector<nn::KeyValueCache<T>>& caches, Matrix<T> last);
  nn::CacheColumns cache_columns() const;  // of each layer's cache

 private:
  template <class>
  friend class HalvesInTurns;
  LocalSizes sizes(Processor processor) const;
  void prepare_networks();
  void normalise_output(const Slot& slot);
  void complete(const nn::HiddenStates<T>& x);
  const StageActivations<T>& at(const Slot& slot) const { return act_.at(slot); }
  const nn::TokenBatch& batch(const Slot& slot) const { return micro_batches_.of(slot.stage, slot.index); }
  const DecoderLayer<T>& layer_of(index_t stage, index_t layer) const {
    return *layers_[static_cast<std::size_t>(first_layer(stage) + layer)];
  }
  deck::Recompute recompute_of(index_t stage, index_t layer) const;
  index_t source_of(index_t stage, index_t layer) const { return table_.layer_unit(first_layer(stage) + layer); }
  SourceUse embedding_use(index_t stage) const { return {table_.embedding_unit(), source_of(stage, 0)}; }
  SourceUse forward_use(index_t stage, index_t layer) const, backward_use(index_t stage, index_t layer) const;
  SourceUse head_use(index_t stage) const { return {table_.head_source(), source_of(stage, layers(stage) - 1)}; }
  // Weights of the steps of loss_backward and backward_after_loss; with appended layers their traffic and the former.
  index_t loss_steps() const, loss_source(index_t step) const, appended_stage(index_t depth) const;
  SourceUse loss_use(index_t stage, index_t step) const, use_after_loss(index_t stage, index_t step) const;
  comm::StepTraffic appended_traffic() const;
  void loss_of_all(const Slot& slot, Vector<const std::int32_t> targets, double scale, const nn::LossRows& rows);
  void use_weights(index_t stage, index_t layer, const SourceUse& use);

  TransformerSetup setup_;
  Device* device_;
  ParameterTable table_;
  nn::ParameterBuffers<T> buffers_;
  UnitWeights<T> weights_;
  std::unique_ptr<GemmRecipe<T>> recipe_;
  MicroBatchTokens micro_batches_;
  std::vector<nn::AttentionGeometry<T>> geometries_;  // of each layer
  std::unique_ptr<nn::AttentionCore<T>> core_;
  std::vector<std::unique_ptr<nn::TensorParallelRegion<T>>> tp_regions_;  // of micro-batches that take turns
  nn::TensorParallelRegion<T>* tp_region_;
  std::shared_ptr<const AttentionBlocks<T>> attention_;
  std::shared_ptr<const LayerNetworks<T>> feed_forward_;
  Matrix<double> statistics_;
  Activations<T> act_;
  std::optional<InputEmbedding<T>> embedding_;
  std::optional<Head<T>> head_;
  std::vector<std::unique_ptr<const DecoderLayer<T>>> layers_;
  std::shared_ptr<AppendedLayers<T>> appended_;  // null: none here
};

}  // namespace nanotron::model
