#include "nanotron/model/layers/transformer.hpp"

#include <algorithm>

#include "model/later_tokens/appended_layers.hpp"
#include "nanotron/base/error.hpp"
#include "nanotron/base/flight_recorder.hpp"
#include "nanotron/base/types.hpp"
#include "nanotron/kernels/elementwise/elementwise.hpp"
#include "nanotron/nn/preference/pair_losses.hpp"
#include "offloaded_layers.hpp"
#include "transformer_parts.hpp"

namespace nanotron::model {
using namespace detail;

ParameterTable parameter_table_of(const TransformerSetup& setup) {
  return make_parameter_table(setup.model, {.tp_size = setup.tp->size(),
                                            .tp_rank = setup.tp->rank(),
                                            .tp_mode = setup.tp_mode,
                                            .layers = layers_of(with_stages(setup).stages),
                                            .tensor_shards = setup.tensor_shards,
                                            .ep_size = setup.ep->size(),
                                            .ep_rank = setup.ep->rank(),
                                            .ep_spans_tp = setup.ep_spans_tp,
                                            .shards = setup.unit_shards,
                                            .lora = setup.lora});
}

template <class T>
Transformer<T>::Transformer(const TransformerSetup& setup, Device& device, Arena& arena)
    : setup_(with_stages(setup)),
      device_(&device),
      table_(parameter_table_of(setup)),
      buffers_(arena, layouts_of<T>(setup, table_)),
      weights_(setup.sharding, table_, buffers_, device),
      recipe_(make_gemm_recipe<T>(setup, table_, buffers_, arena)),
      micro_batches_(setup.context(), setup.sequences, setup.document_mask, setup.length_buckets, slots_of(setup_),
                     device, arena),
      geometries_(make_geometries<T>(setup_, table_, buffers_, orders_of(setup), device, arena)),
      core_(nn::make_attention_core<T>(setup.context(), geometries_.front(), setup.sequences, setup.key_length,
                                       setup.context_groups(), shared_keys(setup), arena)),
      tp_regions_(make_regions<T>(setup, tokens(), arena)),
      tp_region_(tp_regions_.front().get()),
      attention_(make_attention_blocks<T>(setup, table_, arena)),
      feed_forward_(make_layer_networks<T>(setup, table_, tokens(), device, arena)),
      statistics_(arena.take<double>(MemoryKind::workspace, table_.layers, feed_forward_->sums())),
      act_(arena, sizes(arena.processor()),
           {.stages = setup_.stages,
            .backward = setup.backward,
            .has_head = has_end(setup_),
            .recompute = setup.recompute,
            .purpose = setup.purpose,
            .hidden_gradients = setup.hidden_gradients,
            .in_turns = setup.in_turns},
           *recipe_, *attention_, *feed_forward_, tp_regions_),
      embedding_(make_embedding(setup_, table_, buffers_, sizes(arena.processor()), *tp_region_, arena)),
      head_(make_head(setup_, table_, buffers_)),
      layers_(make_layers(setup, table_, buffers_, geometries_, *core_, *tp_region_, orders_of(setup), *attention_,
                          *feed_forward_, statistics_, residual_sum(setup, arena.processor()), *recipe_)),
      appended_(make_appended<T>(setup_, table_, buffers_, sizes(arena.processor()), *tp_region_, arena)) {
  take_gemm_workspace<T>(sizes(arena.processor()), *recipe_, *attention_, *feed_forward_, act_.loss.chunk(), device,
                         arena);
  if (arena.is_planning() || setup.purpose == Purpose::inference) return;
  prepare_networks();
  const LayerActivations<T>& act = act_.stages.front().front().layers.front();
  if constexpr (built_for == Processor::gpu) {
    nn::TokenBatch tokens = batch({});
    for (const index_t documents : documents_to_prepare(setup)) {
      tokens.documents = documents;
      for (const nn::AttentionGeometry<T>& layer : distinct(geometries_)) {
        core_->prepare(device, layer, tokens, act.attention, act_.work.attention);
      }
    }
  }
}

// One layer of each kind of network.
template <class T>
void Transformer<T>::prepare_networks() {
  std::vector<bool> is_prepared(feed_forward_->kinds().size());
  for (index_t stage = 0, local = 0; stage < static_cast<index_t>(setup_.stages.size()); ++stage) {
    for (const LayerActivations<T>& act : at({.stage = stage}).layers) {
      const std::size_t kind = feed_forward_->kind_of(local);
      if (!is_prepared[kind]) layers_[static_cast<std::size_t>(local)]->prepare(*device_, act, act_.work);
      is_prepared[kind] = true;
      ++local;
    }
  }
}

template <class T>
LocalSizes Transformer<T>::sizes(Processor processor) const {
  LocalSizes s = local_sizes(setup_.model, table_, tokens(), tp_region_->rows());
  s.core = core_sizes(*core_, geometries_, processor);
  const SumOrders orders = orders_of(setup_);
  s.norm = nn::norm_sizes(setup_.model.normalization, processor, s.hidden_rows, s.hidden, orders.tokens);
  s.activation_sums = nn::activation_sums(setup_.model.hidden_act, processor, s.tokens, s.intermediate,
                                          activation_order(orders.feed_forward));
  s.token_segments = orders.heads.tokens;
  s.head_segments = orders.heads.heads;
  s.norm_heads = orders.norm_heads;
  s.loss_width = loss_width(setup_, table_);
  s.loss_bias_segments = loss_bias_segments(setup_, table_);
  s.kept_inputs = tp_region_->kept_rows();
  s.chunks = tp_region_->chunks();
  s.is_sharded = tp_region_->is_sharded();
  return s;
}

template <class T>
nn::CacheColumns Transformer<T>::cache_columns() const {
  return attention_->cache(local_sizes(setup_.model, table_, tokens(), tp_region_->rows()));
}

template <class T>
void Transformer<T>::refresh_compute_weights() {
  weights_.refresh();
  recipe_->weights_changed();
}

template <class T>
void Transformer<T>::refresh_after_update(RestOfUpdate* rest) {
  weights_.refresh_after_update(rest);
  recipe_->weights_changed();
}

template <class T>
void Transformer<T>::forget_gathered_weights() {
  weights_.forget();
  recipe_->weights_changed();
}

template <class T>
void Transformer<T>::gather_weights_in_use() {
  weights_.gather_in_use();
  recipe_->weights_changed();
}

template <class T>
void Transformer<T>::use_weights(index_t stage, index_t layer, const SourceUse& use) {
  const index_t local = first_layer(stage) + layer;
  if (recipe_->reads_weights(local)) weights_.use(use);
  recipe_->use_weights(*device_, local);
}

template <class T>
index_t Transformer<T>::first_layer(index_t stage) const {
  index_t first = 0;
  for (index_t s = 0; s < stage; ++s) first += layers(s);
  return first;
}

template <class T>
deck::Recompute Transformer<T>::recompute_of(index_t stage, index_t layer) const {
  return setup_.recompute.of(setup_.stages[static_cast<std::size_t>(stage)].layers.begin + layer);
}

template <class T>
bool Transformer<T>::has_embedding(index_t stage) const {
  return is_first(setup_.stages[static_cast<std::size_t>(stage)]);
}

template <class T>
bool Transformer<T>::has_head(index_t stage) const {
  return is_last(setup_, setup_.stages[static_cast<std::size_t>(stage)]);
}

template <class T>
SourceUse Transformer<T>::forward_use(index_t stage, index_t layer) const {
  const bool inside = layer + 1 < layers(stage);
  const index_t after = has_head(stage) ? loss_use(stage, 0).source : no_unit;
  return {source_of(stage, layer), inside ? source_of(stage, layer + 1) : after};
}

template <class T>
SourceUse Transformer<T>::backward_use(index_t stage, index_t layer) const {
  return {source_of(stage, layer), layer > 0 ? source_of(stage, layer - 1) : no_unit};
}

template <class T>
std::vector<SourceUse> Transformer<T>::forward_uses(index_t stage) const {
  std::vector<SourceUse> uses;
  if (has_embedding(stage)) uses.push_back(embedding_use(stage));
  for (index_t l = 0; l < layers(stage); ++l) uses.push_back(forward_use(stage, l));
  return uses;
}

template <class T>
std::vector<SourceUse> Transformer<T>::backward_uses(index_t stage) const {
  std::vector<SourceUse> uses;
  if (has_head(stage)) {
    for (index_t turn = 0; turn < setup_.in_turns; ++turn) {
      for (index_t step = 0; step < loss_steps(); ++step) uses.push_back(loss_use(stage, step));
      for (index_t step = 0; step + 1 < steps_after_loss(); ++step) uses.push_back(use_after_loss(stage, step));
    }
  }
  for (index_t l = layers(stage) - 1; l >= 0; --l) uses.push_back(backward_use(stage, l));
  return uses;
}

template <class T>
std::vector<SourceUse> Transformer<T>::weight_uses(index_t stage) const {
  std::vector<SourceUse> uses;
  for (index_t l = layers(stage) - 1; l >= 0; --l) {
    if (layer_of(stage, l).reads_weights_later()) uses.push_back({source_of(stage, l), no_unit});
  }
  return uses;
}

template <class T>
LayerTraffic Transformer<T>::traffic(index_t stage) const {
  LayerTraffic sum;
  for (index_t l = 0; l < layers(stage); ++l) {
    const LayerTraffic layer = layer_of(stage, l).traffic();
    sum.forward += layer.forward;
    sum.backward += layer.backward;
    sum.backward += recompute_of(stage, l) == deck::Recompute::full ? layer.recompute : layer.again;
    sum.backward_input += layer.backward_input + layer.again;
    sum.backward_weight += layer.backward_weight;
  }
  comm::StepTraffic ends;
  if (has_embedding(stage)) {
    sum.forward += tp_region_->sum_traffic();
    if (!table_.has_frozen()) ends += tp_region_->gather_traffic();
  }
  if (has_head(stage)) {
    ends += tp_region_->gather_traffic() + head_->loss.traffic(tokens()) + tp_region_->sum_traffic();
    ends += nn::pair_traffic(setup_.objective, setup_.sequences, std::max(1, setup_.context_shards), setup_.cp->size());
    ends += appended_traffic();
  }
  sum.backward += ends;
  sum.backward_input += ends;
  return sum;
}

template <class T>
void Transformer<T>::embed(const Slot& slot, Vector<const std::int32_t> inputs) {
  const Region region(device_->timers(), "forward");
  weights_.use(embedding_use(slot.stage));
  embedding_->forward(*device_, slot.index, inputs, batch(slot), input(slot));
}

template <class T>
void Transformer<T>::forward(const Slot& slot) {
  const Region region(device_->timers(), "forward");
  const StageActivations<T>& act = at(slot);
  nn::HiddenStates<T> x{act.residual.front()};
  for (index_t l = 0; l < layers(slot.stage); ++l) {
    const NotedLayer noted(setup_.stages[static_cast<std::size_t>(slot.stage)].layers.begin + l);
    use_weights(slot.stage, l, forward_use(slot.stage, l));
    const auto at_l = static_cast<std::size_t>(l);
    act_.offloaded->before_forward(*device_, slot, l);
    x = layer_of(slot.stage, l)
            .forward(*device_, batch(slot), x, act.layers[at_l], act_.work_of(slot), act.residual[at_l + 1]);
    act_.offloaded->after_forward(*device_, slot, l);
  }
  complete(x);
}

// The sum that the last layer left, as no norm of this stage follows.
template <class T>
void Transformer<T>::complete(const nn::HiddenStates<T>& x) {
  if (!x.is_whole()) kernels::add<T>(*device_, flat(x.addend), flat(x.x));
}

template <class T>
void Transformer<T>::normalise_output(const Slot& slot) {
  head_->norm->forward(*device_, {output(slot)}, act_.final_norm, act_.final_statistics, {});
}

template <class T>
void Transformer<T>::loss(const Slot& slot, Vector<const std::int32_t> targets, Vector<double> losses) {
  const Region region(device_->timers(), "loss");
  weights_.use({table_.head_source()});
  normalise_output(slot);
  head_->loss.forward(*device_, tp_region_->gather(*device_, act_.final_norm), targets, act_.loss, losses);
}

template <class T>
void Transformer<T>::loss_backward(const Slot& slot, Vector<const std::int32_t> targets, double scale,
                                   const nn::LossRows& rows, Matrix<T> dx) {
  const Region region(device_->timers(), "loss");
  if (appended_) return loss_of_all(slot, targets, scale, rows);
  weights_.use(head_use(slot.stage));
  const Workspace<T>& work = act_.work;
  normalise_output(slot);
  head_->loss.forward_backward(*device_, tp_region_->gather(*device_, act_.final_norm), targets, scale, act_.loss, rows,
                               tp_region_->partial_sum(work.dn));
  nn::Pending dn_sum = tp_region_->start_sum(*device_, work.dn);
  kernels::fill<T>(*device_, flat(dx), 0.0);
  dn_sum.wait();
  head_->norm->backward(*device_, work.dn, output(slot), act_.final_statistics, dx, work.sums);
}

template <class T>
void Transformer<T>::backward_layer(const Slot& slot, index_t layer, Matrix<T> dx) {
  const Region region(device_->timers(), "backward");
  const NotedLayer noted(setup_.stages[static_cast<std::size_t>(slot.stage)].layers.begin + layer);
  use_weights(slot.stage, layer, backward_use(slot.stage, layer));
  const auto l = static_cast<std::size_t>(layer);
  const Matrix<T> x = at(slot).residual[l];
  const LayerActivations<T>& act = at(slot).layers[l];
  const DecoderLayer<T>& decoder = layer_of(slot.stage, layer);
  const deck::Recompute recompute = recompute_of(slot.stage, layer);
  act_.offloaded->before_backward(*device_, slot, layer);
  if (recompute == deck::Recompute::selective) {
    decoder.recompute_selective(*device_, x, act);
  } else if (recompute == deck::Recompute::full) {
    decoder.recompute(*device_, batch(slot), x, act, act_.work_of(slot), at(slot).residual[l + 1]);
  }
  decoder.backward(*device_, batch(slot), x, act, act_.work_of(slot), dx);
  act_.offloaded->after_backward(*device_, slot, layer);
}

template <class T>
void Transformer<T>::backward_layer_input(const Slot& slot, index_t layer, Matrix<T> dx) {
  const Region region(device_->timers(), "backward");
  NANOTRON_REQUIRE(recompute_of(slot.stage, layer) == deck::Recompute::none && setup_.backward == Backward::two_parts,
                   "the model is not set up for backward in two parts");
  const NotedLayer noted(setup_.stages[static_cast<std::size_t>(slot.stage)].layers.begin + layer);
  use_weights(slot.stage, layer, backward_use(slot.stage, layer));
  const auto l = static_cast<std::size_t>(layer);
  const StageActivations<T>& act = at(slot);
  layer_of(slot.stage, layer)
      .backward_input(*device_, batch(slot), act.residual[l], act.layers[l], act_.work_of(slot), act.residual[l + 1],
                      dx);
}

template <class T>
void Transformer<T>::backward_layer_weight(const Slot& slot, index_t layer) {
  const Region region(device_->timers(), "backward");
  const NotedLayer noted(setup_.stages[static_cast<std::size_t>(slot.stage)].layers.begin + layer);
  const auto l = static_cast<std::size_t>(layer);
  const StageActivations<T>& act = at(slot);
  const DecoderLayer<T>& decoder = layer_of(slot.stage, layer);
  if (decoder.reads_weights_later()) use_weights(slot.stage, layer, {source_of(slot.stage, layer), no_unit});
  decoder.backward_weight(*device_, act.residual[l], act.layers[l], act_.work_of(slot), act.residual[l + 1]);
}

template <class T>
void Transformer<T>::backward_embedding(const Slot& slot, Vector<const std::int32_t> inputs, Matrix<T> dx) {
  const Region region(device_->timers(), "backward");
  embedding_->backward(*device_, slot.index, inputs, batch(slot), dx, act_.work);
}

template <class T>
void Transformer<T>::forward_cached(const nn::TokenBatch& batch, Vector<const std::int32_t> inputs,
                                    const std::vector<nn::KeyValueCache<T>>& caches, Matrix<T> last) {
  const index_t tokens = batch.tokens();
  NANOTRON_REQUIRE(tokens <= this->tokens(), "{} tokens at once, set up for {}", tokens, this->tokens());
  const StageActivations<T>& act = at({});
  const auto first = [&](const Matrix<T>& m) { return Matrix<T>(m.data(), tokens, m.extent(1)); };
  nn::HiddenStates<T> x{first(act.residual[0])};
  embedding_->forward(*device_, 0, inputs, batch, x.x);
  for (std::size_t l = 0; l < act.layers.size(); ++l) {
    LayerActivations<T> of_layer = first_tokens(act.layers[l], tokens);
    of_layer.attention.cache = caches[l];
    x = layers_[l]->forward(*device_, batch, x, of_layer, act_.work, first(act.residual[l + 1]));
  }
  complete(x);
  const auto columns = static_cast<index_t>(act_.final_norm.extent(1));
  const auto vocabulary = static_cast<index_t>(last.extent(1));
  for (index_t s = 0; s < batch.sequences; ++s) {
    const index_t row = (s + 1) * batch.length - 1;
    const Matrix<T> of_last(act.residual.back().data() + row * columns, 1, columns);
    const Matrix<T> n(act_.final_norm.data(), 1, columns);
    head_->norm->forward(*device_, {of_last}, n, act_.final_statistics, {});
    head_->loss.logits(*device_, n, Matrix<T>(last.data() + s * vocabulary, 1, vocabulary));
  }
}

NANOTRON_INSTANTIATE_CLASS(Transformer)

}  // namespace nanotron::model
