#include "nanotron/model/parameters/parameter_table.hpp"

#include <algorithm>
#include <span>

#include "nanotron/base/error.hpp"
#include "nanotron/model/parameters/parametrization.hpp"
#include "nanotron/tensor/sum_order.hpp"

namespace nanotron::model {
namespace {

using nn::Initial;
using nn::ParameterSpec;
using nn::Partition;

constexpr index_t alignment = 64;  // elements: every GEMM operand starts on a cache line

Range times(Range r, index_t factor) { return {r.begin * factor, r.end * factor}; }

// Of a sharded dimension: what a rank stores, what of that it owns, and whether any rank of the group
// stores something that another one owns.
struct Held {
  Range local;
  Range owned;
  bool shared = false;
};

Held exclusively(Range r) { return {r, r, false}; }

// Lays specs out one after the other in a flat buffer.
class Builder {
 public:
  Builder(const deck::ModelConfig& model, ParameterTable& table, int tp_rank)
      : model_(model), table_(table), tp_rank_(tp_rank) {}

  // Begins a section whose units divide into `shards` shards; end_section closes it.
  void begin_section(comm::ReplicaSet replicas, int shards) {
    replicas_ = replicas;
    shards_ = shards;
    section_begin_ = cursor_;
    first_unit_ = static_cast<index_t>(table_.units.size());
  }
  void end_section(const Range& params_1d) {
    table_.sections.push_back({.replicas = replicas_,
                               .flat = {section_begin_, cursor_},
                               .params_1d = params_1d,
                               .units = {first_unit_, static_cast<index_t>(table_.units.size())},
                               .first_layer_unit = first_layer_unit_});
  }

  // Whether this rank stores what follows. If not, it takes no memory here.
  void hold(bool is_held) { is_held_ = is_held; }
  void align(index_t shards = 1) {
    const index_t to = alignment * shards;
    cursor_ = begin_ + (cursor_ - begin_ + to - 1) / to * to;
  }
  index_t cursor() const { return cursor_; }

  // Begins a unit. end_unit closes it; end_layer_units repeats it, with the specs from first_spec on, for all layers.
  void begin_unit() { begin_ = cursor_; }
  void end_unit(int uses) {
    align(shards_);
    table_.units.push_back({{begin_, cursor_}, uses, replicas_});
  }
  void end_layer_units(std::size_t first_spec, const std::vector<index_t>& layer_numbers) {
    first_layer_unit_ = static_cast<index_t>(table_.units.size());
    end_unit(1);
    const Unit first = table_.units.back();
    stack_layers(first_spec, layer_numbers);
    for (index_t l = 1; l < static_cast<index_t>(layer_numbers.size()); ++l) {
      const index_t begin = first.range.begin + l * first.range.size();
      table_.units.push_back({{begin, begin + first.range.size()}, 1, replicas_});
    }
  }

  // Repeats what was laid out since begin_unit for every layer.
  void stack_layers(std::size_t first_spec, const std::vector<index_t>& layer_numbers) {
    const index_t stride = cursor_ - begin_;
    for (std::size_t i = first_spec; i < table_.specs.size(); ++i) {
      table_.specs[i].layers = model_.num_hidden_layers;
      if (!table_.specs[i].layer_numbers.empty()) table_.specs[i].layer_numbers = layer_numbers;
      table_.specs[i].is_stacked = true;
      table_.specs[i].layer_stride = stride;
    }
    cursor_ = begin_ + static_cast<index_t>(layer_numbers.size()) * stride;
  }

  // The 1-D parameters of a norm of hidden states.
  void norm(const std::string& prefix, bool partial) {
    whole_1d(prefix + "weight", model_.hidden_size, Initial::ones, partial);
    align();
    if (model_.normalization == deck::Normalization::rms_norm) return;
    whole_1d(prefix + "bias", model_.hidden_size, Initial::zeros, partial);
    align();
  }

  // A replicated 1-D parameter. partial: each rank has a partial sum of its gradient.
  void whole_1d(const std::string& name, index_t n, Initial initial, bool partial) {
    ParameterSpec spec{.name = name, .rows = n, .is_1d = true, .initial = initial};
    spec.local = {0, n};
    spec.owned = tp_rank_ == 0 ? spec.local : Range{0, 0};
    spec.gradient_is_partial = partial;
    add(spec);
  }

  void bias(const std::string& name, index_t n, const Held& held) {
    ParameterSpec spec{.name = name, .rows = n, .is_1d = true, .partition = Partition::column_parallel};
    spec.initial = Initial::zeros;
    shard(spec, held);
  }

  // A replicated 2-D parameter. partial: as of whole_1d.
  void whole_matrix(const std::string& name, index_t rows, index_t columns, Role role, bool partial) {
    const Range all{0, rows};
    matrix(name, rows, columns, Partition::replicated, {all, tp_rank_ == 0 ? all : Range{0, 0}, partial}, role);
  }

  void matrix(const std::string& name, index_t rows, index_t columns, Partition partition, const Held& held,
              Role role) {
    ParameterSpec spec{.name = name, .rows = rows, .columns = columns, .replicas = replicas_, .partition = partition};
    const Scaling scaling = scaling_of(model_, role);
    spec.deviation = scaling.deviation;
    spec.fan_in_ratio = scaling.fan_in_ratio;
    spec.decays = true;
    shard(spec, held);
  }

 private:
  void shard(ParameterSpec& spec, const Held& held) {
    spec.local = held.local;
    spec.owned = held.owned;
    spec.gradient_is_partial = held.shared;
    add(spec);
  }

  void add(ParameterSpec& spec) {
    spec.offset = cursor_;
    if (is_held_) {
      cursor_ += spec.local_size();
    } else {
      spec.layer_numbers.clear();
    }
    table_.specs.push_back(std::move(spec));
  }

  const deck::ModelConfig& model_;
  ParameterTable& table_;
  int tp_rank_;
  comm::ReplicaSet replicas_ = comm::ReplicaSet::data_parallel;
  int shards_ = 1;
  index_t section_begin_ = 0, first_unit_ = 0, first_layer_unit_ = 0;
  index_t begin_ = 0;  // of the unit
  index_t cursor_ = 0;
  bool is_held_ = true;
};

// Sharing is a property of the group, not of one rank: every rank must know whether any KV head is stored twice.
bool key_heads_are_shared(const deck::ModelConfig& m, int tp_size) {
  for (int rank = 0; rank < tp_size; ++rank) {
    const nn::HeadShard heads = nn::shard_heads(m.num_attention_heads, m.num_key_value_heads, tp_size, rank);
    if (heads.key != heads.owned_key) return true;
  }
  return false;
}

struct AttentionParts {
  Held query, key;
};

AttentionParts attention_parts(const deck::ModelConfig& m, const ParameterTable& table, int tp_size) {
  return {
      exclusively(times(table.heads.query, m.head_dim)),
      {times(table.heads.key, m.head_dim), times(table.heads.owned_key, m.head_dim), key_heads_are_shared(m, tp_size)}};
}

void add_attention_1d(Builder& build, const deck::ModelConfig& m, const AttentionParts& parts) {
  const std::string attention = "model/layers/self_attn/";
  const index_t query = m.num_attention_heads * m.head_dim;
  const index_t key = m.num_key_value_heads * m.head_dim;
  if (m.qk_norm) {
    build.whole_1d(attention + "q_norm/weight", m.head_dim, Initial::ones, true);
    build.align();
    build.whole_1d(attention + "k_norm/weight", m.head_dim, Initial::ones, true);
    build.align();
  }
  if (m.qkv_bias) {
    build.bias(attention + "q_proj/bias", query, parts.query);
    build.bias(attention + "k_proj/bias", key, parts.key);
    build.bias(attention + "v_proj/bias", key, parts.key);
    build.align();
  }
  if (m.o_proj_bias) {
    build.whole_1d(attention + "o_proj/bias", m.hidden_size, Initial::zeros, false);
    build.align();
  }
}

// Names of the projections in the first GEMM of a feed-forward network.
using Projections = std::vector<std::string>;
const Projections gate_and_up{"gate_proj", "up_proj"};

Projections first_projections(const deck::ModelConfig& m) {
  return m.is_gated() ? gate_and_up : Projections{"up_proj"};
}

void add_mlp_1d(Builder& build, const deck::ModelConfig& m, const ParameterTable& table) {
  if (!m.mlp_bias) return;
  const std::string mlp = "model/layers/mlp/";
  for (const std::string& name : first_projections(m)) {
    build.bias(mlp + name + "/bias", m.intermediate_size, exclusively(table.intermediate));
  }
  build.align();
  build.whole_1d(mlp + "down_proj/bias", m.hidden_size, Initial::zeros, false);
  build.align();
}

void add_attention(Builder& build, const deck::ModelConfig& m, const AttentionParts& parts) {
  const std::string attention = "model/layers/self_attn/";
  const index_t query = m.num_attention_heads * m.head_dim;
  const index_t key = m.num_key_value_heads * m.head_dim;
  build.matrix(attention + "q_proj/weight", query, m.hidden_size, Partition::column_parallel, parts.query,
               Role::hidden);
  build.matrix(attention + "k_proj/weight", key, m.hidden_size, Partition::column_parallel, parts.key, Role::hidden);
  build.matrix(attention + "v_proj/weight", key, m.hidden_size, Partition::column_parallel, parts.key, Role::hidden);
  build.align();
  build.matrix(attention + "o_proj/weight", m.hidden_size, query, Partition::row_parallel, parts.query, Role::residual);
  build.align();
}

void add_mlp(Builder& build, const std::string& prefix, const Projections& first, index_t hidden, index_t width,
             const Range& local) {
  const Held f = exclusively(local);
  for (const std::string& name : first) {
    build.matrix(prefix + name + "/weight", width, hidden, Partition::column_parallel, f, Role::hidden);
  }
  build.align();
  build.matrix(prefix + "down_proj/weight", hidden, width, Partition::row_parallel, f, Role::residual);
}

// Router and shared expert's gate are one GEMM. partial: its gradient is, see nn/moe/expert_sums.hpp.
void add_feed_forward(Builder& build, const deck::ModelConfig& m, const ParameterTable& table, bool partial) {
  const std::string mlp = "model/layers/mlp/";
  if (m.moe.num_experts == 0) {
    return add_mlp(build, mlp, first_projections(m), m.hidden_size, m.intermediate_size, table.intermediate);
  }
  const index_t shared = m.moe.shared_expert_intermediate_size;
  build.whole_matrix(mlp + "gate/weight", m.moe.num_experts, m.hidden_size, Role::output, partial);
  if (shared == 0) return;
  build.whole_matrix(mlp + "shared_expert_gate/weight", 1, m.hidden_size, Role::output, partial);
  build.align();
  add_mlp(build, mlp + "shared_expert/", gate_and_up, m.hidden_size, shared, table.intermediate);
}

// Token embedding and learned positions: a unit, which two stages store where the head is tied to it.
void add_embedding(Builder& build, const deck::ModelConfig& m, const ParameterTable& table) {
  const bool stored = table.has_embedding || (table.has_head && table.is_tied);
  const auto owned_by_first_stage = [&](const Range& rows) {
    return table.has_embedding ? exclusively(rows) : Held{rows, {0, 0}, false};
  };
  build.hold(stored);
  build.begin_unit();
  build.matrix("model/embed_tokens/weight", m.vocab_size, m.hidden_size, Partition::column_parallel,
               owned_by_first_stage(table.vocabulary), Role::embedding);
  if (m.has_learned_positions()) {  // with tied embeddings the unit has one size on both ends of a pipeline
    build.align();
    build.matrix("model/embed_positions/weight", m.max_position_embeddings, m.hidden_size, Partition::column_parallel,
                 owned_by_first_stage(table.positions), Role::embedding);
  }
  if (stored) build.end_unit(table.has_embedding && table.has_head && table.is_tied ? 2 : 1);
}

// Every rank has the specs of every expert; experts of other ranks take no memory.
void add_experts(Builder& build, const deck::ModelConfig& m, ParameterTable& table, const std::vector<index_t>& layers,
                 int shards) {
  if (m.moe.num_experts == 0) return;
  build.begin_section(comm::ReplicaSet::expert_data_parallel, shards);
  const Range no_1d{build.cursor(), build.cursor()};
  build.hold(true);
  build.begin_unit();
  table.first_expert_spec = table.specs.size();
  for (index_t e = 0; e < m.moe.num_experts; ++e) {
    build.hold(table.experts.contains(e));
    build.align();
    const std::size_t begin = table.specs.size();
    const std::string stack = "model/layers/mlp/experts/", own = stack + std::to_string(e) + "/";
    add_mlp(build, own, gate_and_up, m.hidden_size, m.moe.moe_intermediate_size, table.expert_width);
    for (ParameterSpec& spec : std::span(table.specs).subspan(begin)) {
      spec.stack = stack + spec.name.substr(own.size());
      spec.number = e, spec.numbers = m.moe.num_experts;
    }
  }
  build.end_layer_units(table.first_expert_spec, layers);
  build.end_section(no_1d);
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

}  // namespace

ParameterTable make_parameter_table(const deck::ModelConfig& m, const TableLayout& layout) {
  ParameterTable table{.layout = layout, .specs = {}};
  const int tp_size = layout.tp_size, tp_rank = layout.tp_rank, cuts = std::max(layout.tensor_shards, tp_size);
  table.heads = nn::shard_heads(m.num_attention_heads, m.num_key_value_heads, tp_size, tp_rank);
  table.intermediate = shard_range(m.moe.num_experts > 0 ? m.moe.shared_expert_intermediate_size : m.intermediate_size,
                                   cuts, tp_size, tp_rank);
  table.expert_width = shard_range(m.moe.moe_intermediate_size, cuts, tp_size, tp_rank);
  table.experts = shard_range(m.moe.num_experts, layout.ep_size, layout.ep_rank);
  table.vocabulary = shard_range(m.vocab_size, cuts, tp_size, tp_rank);
  table.positions = shard_range(m.max_position_embeddings, cuts, tp_size, tp_rank);

  const std::vector<index_t> layers = layers_of(layout.layers, m.num_hidden_layers);
  const bool is_first = layers.front() == 0, is_last = layers.back() + 1 == m.num_hidden_layers;
  const Held words = exclusively(table.vocabulary);
  const AttentionParts heads = attention_parts(m, table, tp_size);

  // With sequence-parallel hidden states a norm sees only this rank's tokens: its gradients are partial.
  const bool is_sequence_parallel = layout.tp_mode == deck::TpMode::reduce_scatter && tp_size > 1;

  Builder build(m, table, tp_rank);
  build.begin_section(comm::ReplicaSet::data_parallel, layout.shards);
  build.norm("model/layers/input_layernorm/", is_sequence_parallel);
  build.norm("model/layers/post_attention_layernorm/", is_sequence_parallel);
  add_attention_1d(build, m, heads);
  add_mlp_1d(build, m, table);
  build.stack_layers(0, layers);
  build.hold(is_last);
  build.norm("model/norm/", is_sequence_parallel);
  table.params_1d = {0, build.cursor()};

  table.is_tied = m.tie_word_embeddings;
  table.has_embedding = is_first;
  table.has_head = is_last;
  add_embedding(build, m, table);

  build.hold(true);
  build.begin_unit();
  table.layers = static_cast<index_t>(layers.size());
  const std::size_t first_layer_spec = table.specs.size();
  add_attention(build, m, heads);
  add_feed_forward(build, m, table, layout.tensor_shards == 0);
  build.end_layer_units(first_layer_spec, layers);

  if (!table.is_tied) {
    build.hold(is_last);
    build.begin_unit();
    build.matrix("lm_head/weight", m.vocab_size, m.hidden_size, Partition::column_parallel, words, Role::output);
    if (is_last) build.end_unit(1);
  }
  build.end_section(table.params_1d);
  add_experts(build, m, table, layers, layout.shards_of(comm::ReplicaSet::expert_data_parallel));
  table.size = build.cursor();
  return table;
}

index_t ParameterTable::unit_of(index_t source, const Section& section) const {
  if (section.replicas == comm::ReplicaSet::data_parallel) return source == head_source() ? head_unit() : source;
  return is_layer(source) ? section.first_layer_unit + source - layer_unit(0) : no_unit;
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

}  // namespace nanotron::model
