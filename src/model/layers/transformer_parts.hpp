#pragma once

// What the constructor of Transformer makes from its setup: layouts, geometry, norms, attention, layers, embedding
// and head. Private to the model layer.

#include <algorithm>

#include "attention_blocks.hpp"
#include "nanotron/deck/later_tokens.hpp"
#include "nanotron/model/layers/transformer.hpp"
#include "nanotron/nn/attention/score_map.hpp"
#include "nanotron/nn/attention/sinks.hpp"
#include "nanotron/nn/dropout/dropout.hpp"

namespace nanotron::model {

/// Of tokens alone, see InputEmbedding: in input_embedding.cpp.
template <class T>
nn::VocabEmbedding<T> make_token_lookup(const TransformerSetup& setup, const ParameterTable& table,
                                        const nn::ParameterBuffers<T>& buffers);

namespace detail {

// Vocabulary size that sets the loss's chunk of tokens, with 'layout' independent of the grid; 0: one chunk.
inline index_t loss_width(const TransformerSetup& s, const ParameterTable& table) {
  if (s.context_shards > 1) return 0;
  return s.tensor_shards > 0 ? s.model.vocab_size : table.vocabulary.size();
}

/// The logits of this rank that a bias is added to: all, or none.
inline index_t biased_logits(const ParameterTable& table) {
  return table.contains("lm_head/bias") ? table["lm_head/bias"].local_rows() : 0;
}

/// See nn::LossWorkspace.
inline index_t loss_bias_segments(const TransformerSetup& s, const ParameterTable& table) {
  return s.purpose == Purpose::inference || biased_logits(table) == 0 ? 0 : orders_of(s).heads.tokens;
}

template <class T>
nn::ParameterLayouts layouts_of(const TransformerSetup& setup, const ParameterTable& table) {
  nn::ParameterLayouts layouts = parameter_layouts(table, setup.sharding, compute_weights<T>(setup));
  if (setup.purpose == Purpose::inference) layouts.gradient = layouts.reduced = {};
  return layouts;
}

/// The number in the model of each layer stored here.
inline std::vector<index_t> layer_numbers(const std::vector<VirtualStage>& stages) {
  std::vector<index_t> numbers;
  for (const VirtualStage& stage : stages) {
    for (index_t l = stage.layers.begin; l < stage.layers.end; ++l) numbers.push_back(l);
  }
  return numbers;
}

/// What a layer adds to the softmax's denominator; null without.
template <class T>
std::shared_ptr<const nn::DenominatorTerm<T>> make_denominator(const ParameterTable& table,
                                                               const nn::ParameterBuffers<T>& buffers, index_t layer) {
  const std::string name = "model/layers/self_attn/sinks";
  if (!table.contains(name)) return nullptr;
  const nn::ParameterSpec& sinks = table[name];
  return nn::make_sinks<T>(table.heads.query.begin, buffers.vector(sinks, layer, sinks.local_rows()),
                           buffers.vector_gradient(sinks, layer, sinks.local_rows()));
}

/// Of each layer stored here. Layers that rotate alike share tables.
template <class T>
std::vector<nn::AttentionGeometry<T>> make_geometries(const TransformerSetup& setup, const ParameterTable& table,
                                                      const nn::ParameterBuffers<T>& buffers, const SumOrders& orders,
                                                      Device& device, Arena& arena) {
  const deck::LayerKinds kinds(setup.model);
  const std::vector<nn::Rotation<T>> rotations =
      nn::make_rotations<T>(setup.model, kinds.all(), setup.key_length, device, arena);
  std::vector<nn::AttentionGeometry<T>> geometries;
  for (const index_t number : layer_numbers(setup.stages)) {
    const auto layer = static_cast<index_t>(geometries.size());
    kernels::ScoreMap scores = nn::score_map(setup.model);
    scores.maxima = setup.score_maxima.of_layer(number);
    geometries.push_back({.heads = table.heads,
                          .head_dim = setup.model.head_dim,
                          .norm_eps = setup.model.rms_norm_eps,
                          .window = kinds[number].window,
                          .document_stride = setup.document_mask == deck::DocumentMask::none ? 0 : setup.length,
                          .backward = setup.attention_backward,
                          .scores = scores,
                          .mask = nn::probability_mask(setup.model, number, setup.seed),
                          .rotation = rotations[kinds.of(number)],
                          .denominator = make_denominator(table, buffers, layer),
                          .token_segments = orders.heads.tokens});
  }
  return geometries;
}

/// Where a shard of sums over features has no whole key head.
inline nn::SharedKeys shared_keys(const TransformerSetup& s) {
  const index_t queries = s.model.num_attention_heads, keys = s.model.num_key_value_heads;
  if (s.tensor_shards <= keys) return {};
  nn::SharedKeys shared{.piece = nn::heads_of_piece(queries, keys, s.tensor_shards), .tp = s.tp};
  for (int rank = 0; rank < s.tp->size(); ++rank)
    shared.query_heads.push_back(nn::shard_heads(queries, keys, s.tensor_shards, s.tp->size(), rank).query);
  return shared;
}

/// Enough for each of the layers.
template <class T>
nn::CoreSizes core_sizes(const nn::AttentionCore<T>& core, const std::vector<nn::AttentionGeometry<T>>& layers,
                         Processor processor) {
  nn::CoreSizes sizes = core.sizes(layers.front(), processor);
  for (const nn::AttentionGeometry<T>& layer : layers) {
    sizes.tile_bytes = std::max(sizes.tile_bytes, core.sizes(layer, processor).tile_bytes);
  }
  return sizes;
}

/// The first layer of each shape of attention.
template <class T>
std::vector<nn::AttentionGeometry<T>> distinct(const std::vector<nn::AttentionGeometry<T>>& layers) {
  std::vector<nn::AttentionGeometry<T>> found;
  for (const nn::AttentionGeometry<T>& layer : layers) {
    if (std::ranges::find(found, layer.window, &nn::AttentionGeometry<T>::window) == found.end()) {
      found.push_back(layer);
    }
  }
  return found;
}

/// TokenBatch::documents of the plans that are made before the first step.
inline std::vector<index_t> documents_to_prepare(const TransformerSetup& s) {
  if (s.document_mask == deck::DocumentMask::none) return {0};
  return kernels::planned_documents(s.sequences, s.length);
}

/// Without those of appended layers, which read the tokens of the last stage.
inline std::vector<index_t> slots_of(const TransformerSetup& setup) {
  std::vector<index_t> slots;
  for (const VirtualStage& stage : setup.stages) {
    if (stage.layers.begin < setup.model.num_hidden_layers) slots.push_back(stage.slots);
  }
  return slots;
}

template <class T>
void take_gemm_workspace(const LocalSizes& s, const GemmRecipe<T>& recipe, const AttentionBlocks<T>& attention,
                         const LayerNetworks<T>& feed_forward, index_t loss_rows, Device& device, Arena& arena) {
  const GemmMode mode = device.gemm_mode();
  const Processor processor = arena.processor();
  std::size_t bytes = recipe.gemm_workspace_bytes(s, processor);
  std::vector<LinearSizes> linears = attention.linears(s);
  for (const auto& kind : feed_forward.kinds()) {
    bytes = std::max(bytes, kind->gemm_workspace_bytes());
    const std::vector<LinearSizes> of_kind = kind->linears();
    linears.insert(linears.end(), of_kind.begin(), of_kind.end());
  }
  if (s.appended > 0) linears.push_back({s.hidden_rows, s.hidden, 2 * s.hidden});
  linears.insert(
      linears.end(),
      {{s.tokens, s.gate_up, s.hidden}, {s.tokens, s.hidden, s.intermediate}, {loss_rows, s.vocabulary, s.hidden}});
  // Forward, input gradient, weight gradient.
  for (const auto& [tokens, out, in] : linears) {
    if (tokens == 0 || out == 0 || in == 0) continue;
    bytes = std::max({bytes, kernels::gemm_workspace_bytes<T>(mode, processor, tokens, out, in),
                      kernels::gemm_workspace_bytes<T>(mode, processor, tokens, in, out),
                      kernels::gemm_workspace_bytes<T>(mode, processor, out, in, tokens)});
  }
  device.set_gemm_workspace(arena.take<std::byte>(MemoryKind::workspace, static_cast<index_t>(bytes)));
}

template <class T>
std::unique_ptr<const nn::Norm<T>> make_norm(const deck::ModelConfig& model, const ParameterTable& table,
                                             const nn::ParameterBuffers<T>& buffers, const std::string& prefix,
                                             index_t layer, const kernels::RowSegments& segments) {
  return nn::make_norm<T>(model.normalization, norm_weights(table, buffers, prefix, layer), model.norm_eps(), segments);
}

inline Vector<double> row(const Matrix<double>& m, index_t i) {
  const auto columns = static_cast<index_t>(m.extent(1));
  return Vector<double>(m.data() == nullptr ? nullptr : m.data() + i * columns, columns);
}

// In GEMMs on a GPU where no partial sums are reduced after them. Elsewhere x is added last on any number of ranks:
// reproducible = 'layout' needs that.
inline ResidualSum residual_sum(const TransformerSetup& setup, Processor processor) {
  const bool whole = setup.tp->size() == 1 && setup.tensor_shards == 0;
  return processor == Processor::gpu && whole ? ResidualSum::in_gemm : ResidualSum::in_norm;
}

template <class T>
std::vector<std::unique_ptr<const DecoderLayer<T>>> make_layers(
    const TransformerSetup& setup, const ParameterTable& table, const nn::ParameterBuffers<T>& buffers,
    const std::vector<nn::AttentionGeometry<T>>& geometries, nn::AttentionCore<T>& core,
    nn::TensorParallelRegion<T>& region, const SumOrders& orders, const AttentionBlocks<T>& attention,
    const LayerNetworks<T>& feed_forward, const Matrix<double>& statistics, ResidualSum sum,
    const GemmRecipe<T>& recipe) {
  const LayerLayout layout = layer_layout(setup.model);
  std::vector<std::unique_ptr<const DecoderLayer<T>>> layers;
  for (index_t l = 0; l < table.layers; ++l) {
    const LayerGemms<T> gemms = recipe.gemms(l);
    const auto activation =
        activation_source(setup.model, table, buffers, orders.feed_forward, feed_forward.place_in_kind(l), *setup.tp);
    const auto norm = [&](const std::string& name) {
      return name.empty() ? nullptr : make_norm(setup.model, table, buffers, "model/layers/" + name, l, orders.tokens);
    };
    const auto mask = [&](kernels::MaskSite site) {
      return nn::output_mask(setup.model, site, table.layer_numbers[static_cast<std::size_t>(l)], setup.seed);
    };
    const auto input = [&](const std::string& name) { return name.empty() ? nn::make_no_norm<T>() : norm(name); };
    LayerParts<T> parts{
        .attention_norms = {input(layout.attention.input), norm(layout.attention.output)},
        .attention = attention.make(
            {table, buffers, l, geometries[static_cast<std::size_t>(l)], core, orders, gemms, *setup.tp}),
        .mlp_norms = {input(layout.mlp.input), norm(layout.mlp.output)},
        .feed_forward = feed_forward[l].make({table, buffers, feed_forward.place_in_kind(l), orders.feed_forward, gemms,
                                              recipe, activation, row(statistics, l)}),
        .multiplier = layout.multiplier,
        .attention_mask = mask(kernels::MaskSite::attention),
        .mlp_mask = mask(kernels::MaskSite::feed_forward),
        .sum = sum};
    layers.push_back(make_decoder_layer(layout, std::move(parts), region));
  }
  return layers;
}

inline bool is_first(const VirtualStage& stage) { return stage.layers.begin == 0; }
inline bool is_last(const TransformerSetup& setup, const VirtualStage& stage) {
  return stage.layers.end == setup.model.num_hidden_layers;
}

/// Whether the model's last layer is stored here, with what follows it.
inline bool has_end(const TransformerSetup& setup) {
  return std::ranges::any_of(setup.stages, [&](const VirtualStage& stage) { return is_last(setup, stage); });
}

template <class T>
std::optional<InputEmbedding<T>> make_embedding(const TransformerSetup& setup, const ParameterTable& table,
                                                const nn::ParameterBuffers<T>& buffers, const LocalSizes& sizes,
                                                nn::TensorParallelRegion<T>& region, Arena& arena) {
  if (!is_first(setup.stages.front())) return std::nullopt;
  return InputEmbedding<T>(setup, table, buffers, sizes, region, arena);
}

/// With tied embeddings the weight is theirs; the bias is the head's own.
template <class T>
nn::LinearWeights<T> head_weights(const ParameterTable& table, const nn::ParameterBuffers<T>& buffers) {
  const nn::ParameterSpec& weight = table[table.is_tied ? "model/embed_tokens/weight" : "lm_head/weight"];
  const index_t rows = weight.local_rows(), biased = biased_logits(table);
  nn::LinearWeights<T> head{.weight = buffers.weight(weight, 0, rows),
                            .gradient = buffers.weight_gradient(weight, 0, rows)};
  if (biased == 0) return head;
  const nn::ParameterSpec& bias = table["lm_head/bias"];
  head.bias = buffers.vector(bias, 0, biased);
  if (bias.has_gradient) head.bias_gradient = buffers.vector_gradient(bias, 0, biased);
  return head;
}

template <class T>
std::optional<Head<T>> make_head(const TransformerSetup& setup, const ParameterTable& table,
                                 const nn::ParameterBuffers<T>& buffers) {
  if (!has_end(setup)) return std::nullopt;
  const SumOrders orders = orders_of(setup);
  return Head<T>{make_norm(setup.model, table, buffers, "model/norm/", 0, orders.tokens),
                 nn::VocabLoss<T>(table.vocabulary, head_weights(table, buffers), *setup.tp, orders.head,
                                  nn::logit_rule(setup.model, setup.objective))};
}

template <class T>
std::shared_ptr<AppendedLayers<T>> make_appended(const TransformerSetup& setup, const ParameterTable& table,
                                                 const nn::ParameterBuffers<T>& buffers, const LocalSizes& sizes,
                                                 nn::TensorParallelRegion<T>& region, Arena& arena) {
  if (table.appended_layers == 0 || setup.purpose == Purpose::inference) return nullptr;
  return std::make_shared<AppendedLayers<T>>(setup, table, buffers, sizes, region, arena);
}

template <class T>
std::vector<std::unique_ptr<nn::TensorParallelRegion<T>>> make_regions(const TransformerSetup& setup, index_t tokens,
                                                                       Arena& arena) {
  std::vector<std::unique_ptr<nn::TensorParallelRegion<T>>> regions;
  for (index_t turn = 0; turn < setup.in_turns; ++turn) {
    regions.push_back(nn::make_tensor_parallel_region<T>(
        setup.tp_mode, {.tokens = tokens, .width = setup.model.hidden_size, .tp_size = setup.tp->size()}, setup.overlap,
        *setup.tp, arena));
  }
  return regions;
}

/// Each appended layer is a virtual stage of its own after the last one, which runs one micro-batch at a time;
/// inference does not run it.
inline TransformerSetup with_stages(TransformerSetup setup) {
  const index_t layers = setup.model.num_hidden_layers;
  if (setup.stages.empty()) setup.stages = {{.layers = {0, layers}, .slots = setup.in_turns}};
  for (VirtualStage& stage : setup.stages) stage.offloaded = setup.offloaded_layers;
  if (!is_last(setup, setup.stages.back())) return setup;
  const index_t slots = setup.purpose == Purpose::training ? 1 : 0;
  for (index_t l = layers; l < deck::stored_layers(setup.model); ++l)
    setup.stages.push_back({.layers = {l, l + 1}, .slots = slots});
  return setup;
}

inline std::vector<Range> layers_of(const std::vector<VirtualStage>& stages) {
  std::vector<Range> layers;
  for (const VirtualStage& stage : stages) layers.push_back(stage.layers);
  return layers;
}

}  // namespace detail
}  // namespace nanotron::model
