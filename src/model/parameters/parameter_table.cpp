#include "nanotron/model/parameters/parameter_table.hpp"

#include <algorithm>

#include "expert_specs.hpp"
#include "model/adapters/adapter_specs.hpp"
#include "nanotron/base/error.hpp"
#include "nanotron/deck/config.hpp"
#include "nanotron/deck/later_tokens.hpp"
#include "nanotron/deck/layer_kinds.hpp"
#include "nanotron/model/parameters/layer_layout.hpp"
#include "nanotron/tensor/sum_order.hpp"

namespace nanotron::model {
namespace {

using namespace detail;

// Token embedding and learned positions: a unit, which two stages store where both ends of the model use it.
void add_embedding(TableBuilder& build, const deck::ModelConfig& m, const ParameterTable& table) {
  const bool stored = table.has_embedding || (table.has_head && deck::embeds_at_end(m));
  const auto owned_by_first_stage = [&](const Range& rows) {
    return table.has_embedding ? exclusively(rows) : Held{rows, {0, 0}, false};
  };
  build.hold(stored);
  build.begin_unit();
  build.matrix("model/embed_tokens/weight", m.vocab_size, m.hidden_size, Partition::column_parallel,
               owned_by_first_stage(table.vocabulary), Role::embedding);
  if (m.has_learned_positions()) {  // where two stages store the unit, it has one size on both
    build.align();
    build.matrix("model/embed_positions/weight", m.max_position_embeddings, m.hidden_size, Partition::column_parallel,
                 owned_by_first_stage(table.positions), Role::embedding);
  }
  if (stored) build.end_unit((table.has_embedding ? 1 : 0) + table.uses_at_end());
}

// The norms before the first and after the last layer, and the bias of the head.
void add_ends_1d(TableBuilder& build, const deck::ModelConfig& m, const Held& words, bool is_first, bool is_last,
                 bool partial) {
  build.hold(is_last);
  build.norm("model/norm/", partial);
  if (m.lm_head_bias) {
    build.bias("lm_head/bias", m.vocab_size, words);
    build.align();
  }
  if (!m.embedding_norm) return;
  build.hold(is_first);
  build.norm("model/embed_norm/", partial);
}

std::vector<index_t> layers_of(const std::vector<Range>& stages, index_t all) {
  std::vector<index_t> layers;
  const auto add = [&](const Range& stage) {
    for (index_t l = stage.begin; l < stage.end; ++l) layers.push_back(l);
  };
  if (stages.empty()) add({0, all});
  for (const Range& stage : stages) add(stage);
  return layers;
}

// All layers, those with a dense and with a routed feed-forward block, and the appended ones.
struct Layers {
  LayerNumbers all, dense, routed, appended;
};

Layers by_network(const deck::ModelConfig& m, const std::vector<index_t>& stored) {
  const deck::LayerKinds kinds(m);
  Layers layers;
  for (index_t l = 0; l < deck::stored_layers(m); ++l) {
    std::vector<LayerNumbers*> sets{&layers.all, kinds[l].is_routed ? &layers.routed : &layers.dense};
    if (l >= m.num_hidden_layers) sets.push_back(&layers.appended);
    for (LayerNumbers* set : sets) {
      set->of_model.push_back(l);
      if (std::ranges::binary_search(stored, l)) set->here.push_back(l);
    }
  }
  return layers;
}

// What only layers with a dense, only those with a routed feed-forward block, and only appended layers have.
template <class Dense, class Routed, class Appended>
void add_some(TableBuilder& build, const Layers& layers, const Dense& add_dense, const Routed& add_routed,
              const Appended& add_appended) {
  if (!layers.dense.of_model.empty()) {
    build.begin_some_layers(layers.dense);
    add_dense();
  }
  if (!layers.routed.of_model.empty()) {
    build.begin_some_layers(layers.routed);
    add_routed();
  }
  if (!layers.appended.of_model.empty()) {
    build.begin_some_layers(layers.appended);
    add_appended();
  }
}

// What a rank stores of an expert's width.
Range expert_width(index_t width, const TableLayout& layout, int cuts) {
  return layout.ep_spans_tp ? Range{0, width} : shard_range(width, cuts, layout.tp_size, layout.tp_rank);
}

}  // namespace

int TableLayout::tensor_ranks_of(comm::ReplicaSet replicas) const {
  return ep_spans_tp && replicas == comm::ReplicaSet::expert_data_parallel ? 1 : tp_size;
}

// As comm::GridShape::expert_shards().
int TableLayout::shards_of(comm::ReplicaSet replicas) const {
  if (replicas == comm::ReplicaSet::data_parallel || shards == 1) return shards;
  return std::max(1, shards * (ep_spans_tp ? tp_size : 1) / ep_size);
}

ParameterTable make_parameter_table(const deck::ModelConfig& m, const TableLayout& layout) {
  ParameterTable table{.layout = layout, .specs = {}};
  const int tp_size = layout.tp_size, tp_rank = layout.tp_rank, cuts = std::max(layout.tensor_shards, tp_size);
  table.heads = nn::shard_heads(m.num_attention_heads, m.num_key_value_heads, cuts, tp_size, tp_rank);
  table.layer_numbers = layers_of(layout.layers, deck::stored_layers(m));
  const std::vector<index_t>& stored = table.layer_numbers;
  const Layers layers = by_network(m, stored);
  table.shared_width = shard_range(deck::feed_forward_sizes(m).shared_width.size, cuts, tp_size, tp_rank);
  table.intermediate =
      layers.dense.of_model.empty() ? table.shared_width : shard_range(m.intermediate_size, cuts, tp_size, tp_rank);
  table.expert_width = expert_width(m.moe.moe_intermediate_size, layout, cuts);
  table.experts = shard_range(m.moe.num_experts, layout.ep_size, layout.ep_rank);
  table.vocabulary = shard_range(m.vocab_size, cuts, tp_size, tp_rank);
  table.positions = shard_range(m.max_position_embeddings, cuts, tp_size, tp_rank);

  const bool is_first = stored.front() == 0, is_last = std::ranges::binary_search(stored, m.num_hidden_layers - 1);
  const Held words = exclusively(table.vocabulary);
  const AttentionParts heads = attention_parts(m, table, tp_size);

  // With sequence-parallel hidden states a norm sees only this rank's tokens: its gradients are partial.
  const bool routed_is_partial = layout.tensor_shards == 0;
  const bool is_sequence_parallel = layout.tp_mode == deck::TpMode::reduce_scatter && tp_size > 1;

  TableBuilder build(m, table, tp_rank);
  build.begin_section(comm::ReplicaSet::data_parallel, layout.shards);
  build.begin_layers(layers.all);
  for (const std::string& norm : layer_layout(m).norms()) build.norm("model/layers/" + norm, is_sequence_parallel);
  add_attention_1d(build, m, heads);
  add_some(
      build, layers, [&] { add_dense_1d(build, m, table); }, [&] { add_routed_1d(build, m, routed_is_partial); },
      [&] { add_appended_1d(build, is_sequence_parallel); });
  build.end_layers();
  add_ends_1d(build, m, words, is_first, is_last, is_sequence_parallel);
  table.params_1d = {0, build.cursor()};

  table.is_tied = m.tie_word_embeddings;
  table.has_embedding = is_first;
  table.has_head = is_last;
  table.appended_layers = static_cast<index_t>(layers.appended.here.size());
  add_embedding(build, m, table);
  table.layers = static_cast<index_t>(stored.size());
  build.begin_layers(layers.all);
  add_attention(build, m, heads);
  add_some(
      build, layers, [&] { add_dense(build, m, table); }, [&] { add_routed(build, m, table, routed_is_partial); },
      [&] { add_appended(build, m, is_sequence_parallel); });
  build.end_layer_units();

  if (!table.is_tied) {
    build.hold(is_last);
    build.begin_unit();
    build.matrix("lm_head/weight", m.vocab_size, m.hidden_size, Partition::column_parallel, words, Role::output);
    if (is_last) build.end_unit(1);
  }
  build.end_section(table.params_1d);
  if (layout.lora.rank > 0) add_adapters(build, table, layers.all, layout);
  add_experts(build, m, table, layers.routed, layout.shards_of(comm::ReplicaSet::expert_data_parallel));
  table.size = build.cursor();
  return table;
}

ParameterTable make_parameter_table(const deck::Config& config) {
  return make_parameter_table(config.model, {.lora = config.lora});
}

index_t ParameterTable::unit_of(index_t source, const Section& section) const {
  if (section.flat.begin == dense().flat.begin) {
    if (source == head_source()) return head_unit();
    return is_of_end(source) ? embedding_unit() : source;
  }
  return is_layer(source) ? section.unit_of_layer[static_cast<std::size_t>(source - layer_unit(0))] : no_unit;
}

index_t ParameterTable::local_layer(index_t number) const {
  return std::ranges::lower_bound(layer_numbers, number) - layer_numbers.begin();
}

bool ParameterTable::contains(const std::string& name) const {
  return std::ranges::any_of(specs, [&](const ParameterSpec& s) { return s.name == name; });
}

const nn::ParameterSpec& ParameterTable::operator[](const std::string& name) const {
  const auto found = std::ranges::find(specs, name, &ParameterSpec::name);
  NANOTRON_REQUIRE(found != specs.end(), "no parameter is called {}", name);
  return *found;
}

MlpSpecs ParameterTable::mlp(const std::string& prefix) const {
  const bool gated = contains(prefix + "gate_proj/weight");
  const ParameterSpec& first = (*this)[prefix + (gated ? "gate_proj/weight" : "up_proj/weight")];
  return {first, (*this)[prefix + "down_proj/weight"], (gated ? 2 : 1) * first.local_rows()};
}

MlpSpecs ParameterTable::expert(index_t number) const {
  const std::size_t gate = first_expert_spec + 3 * static_cast<std::size_t>(number);
  return {specs[gate], specs[gate + 2], 2 * specs[gate].local_rows()};
}

index_t ParameterTable::logical_parameters() const {
  index_t sum = 0;
  for (const ParameterSpec& spec : specs) sum += spec.logical_size();
  return sum;
}

index_t ParameterTable::trained_size() const {
  index_t sum = 0;
  for (const Section& section : sections) sum += section.is_frozen ? 0 : section.flat.size();
  return sum;
}

}  // namespace nanotron::model
