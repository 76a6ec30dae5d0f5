#include <span>

#include "expert_specs.hpp"
#include "table_builder.hpp"

namespace nanotron::model::detail {
namespace {

const std::string all_experts = "model/layers/mlp/experts/";

std::string prefix_of(index_t expert) { return all_experts + std::to_string(expert) + "/"; }

// The specs from `first` on are of this expert.
void stack_expert(ParameterTable& table, std::size_t first, index_t expert, index_t experts) {
  for (ParameterSpec& spec : std::span(table.specs).subspan(first)) {
    spec.stack = all_experts + spec.name.substr(prefix_of(expert).size());
    spec.number = expert, spec.numbers = experts;
  }
}

void add_expert_biases(TableBuilder& build, const deck::ModelConfig& m, ParameterTable& table,
                       const LayerNumbers& layers) {
  const Range hidden{0, m.hidden_size};
  build.begin_layers(layers);
  for (index_t e = 0; e < m.moe.num_experts; ++e) {
    build.hold(table.experts.contains(e) && !layers.here.empty());
    const std::size_t first = table.specs.size();
    for (const std::string& name : gate_and_up()) {
      build.bias(prefix_of(e) + name + "/bias", m.moe.moe_intermediate_size, exclusively(table.expert_width));
    }
    build.align();
    if (table.layout.ep_spans_tp) {
      build.bias(prefix_of(e) + "down_proj/bias", m.hidden_size, exclusively(hidden));
    } else {
      build.whole_1d(prefix_of(e) + "down_proj/bias", m.hidden_size, Initial::zeros, false);
    }
    build.align();
    stack_expert(table, first, e, m.moe.num_experts);
  }
  build.end_layers();
}

bool has_choice_bias(const deck::MoeConfig& moe) {
  return moe.router_score == deck::RouterScore::sigmoid || moe.router_bias_update_rate > 0.0;
}

}  // namespace

void add_routed_1d(TableBuilder& build, const deck::ModelConfig& m, bool partial) {
  const std::string gate = "model/layers/mlp/gate/";
  if (m.moe.router_bias) {
    build.whole_1d(gate + "bias", m.moe.num_experts, Initial::zeros, partial);
    build.align();
  }
  if (has_choice_bias(m.moe)) {
    build.constant_1d(gate + "e_score_correction_bias", m.moe.num_experts);
    build.align();
  }
}

void add_routed(TableBuilder& build, const deck::ModelConfig& m, const ParameterTable& table, bool partial) {
  const std::string mlp = "model/layers/mlp/";
  const index_t shared = deck::feed_forward_sizes(m).shared_width.size;
  build.whole_matrix(mlp + "gate/weight", m.moe.num_experts, m.hidden_size, Role::output, partial);
  if (shared == 0) return;
  const bool is_gated = m.moe.shared_expert_intermediate_size > 0;
  if (is_gated) build.whole_matrix(mlp + "shared_expert_gate/weight", 1, m.hidden_size, Role::output, partial);
  build.align();
  add_mlp(build, mlp + (is_gated ? "shared_expert/" : "shared_experts/"), gate_and_up(), m.hidden_size, shared,
          table.shared_width);
}

void add_experts(TableBuilder& build, const deck::ModelConfig& m, ParameterTable& table, const LayerNumbers& layers,
                 int shards) {
  if (m.moe.num_experts == 0) return;
  build.begin_section(comm::ReplicaSet::expert_data_parallel, shards);
  const index_t begin = build.cursor();
  if (m.mlp_bias) add_expert_biases(build, m, table, layers);
  const Range params_1d{begin, build.cursor()};
  build.begin_layers(layers);
  table.first_expert_spec = table.specs.size();
  for (index_t e = 0; e < m.moe.num_experts; ++e) {
    build.hold(table.experts.contains(e) && !layers.here.empty());
    build.align();
    const std::size_t first = table.specs.size();
    add_mlp(build, prefix_of(e), gate_and_up(), m.hidden_size, m.moe.moe_intermediate_size, table.expert_width);
    stack_expert(table, first, e, m.moe.num_experts);
  }
  build.end_layer_units();
  build.end_section(params_1d);
}

}  // namespace nanotron::model::detail
