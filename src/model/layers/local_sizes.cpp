#include "nanotron/model/layers/local_sizes.hpp"

#include <algorithm>

namespace nanotron::model {
namespace {

index_t widest_bias(const deck::ModelConfig& model, const ParameterTable& table) {
  if (model.mlp_bias)
    return std::max<index_t>(model.hidden_size, (model.is_gated() ? 2 : 1) * table.intermediate.size());
  return model.o_proj_bias ? model.hidden_size : 0;
}

}  // namespace

LocalSizes local_sizes(const deck::ModelConfig& model, const ParameterTable& table, index_t tokens,
                       index_t hidden_rows) {
  const std::string norm = "model/layers/self_attn/q_norm/weight";
  const bool whole = model.qk_norm && table[norm].partition == nn::Partition::column_parallel;
  return {.tokens = tokens,
          .hidden_rows = hidden_rows,
          .hidden = model.hidden_size,
          .query = table.heads.query.size() * model.head_dim,
          .key = table.heads.key.size() * model.head_dim,
          .query_heads = table.heads.query.size(),
          .key_heads = table.heads.key.size(),
          .intermediate = table.intermediate.size(),
          .vocabulary = table.vocabulary.size(),
          .layers = table.layers,
          .appended = table.appended_layers,
          .gate_up = (model.is_gated() ? 2 : 1) * table.intermediate.size(),
          .layout = layer_layout(model),
          .biases = widest_bias(model, table),
          .qk_norm = model.qk_norm,
          .query_norms = whole ? 2 : table.heads.query.size(),
          .key_norms = whole ? 2 : table.heads.key.size(),
          .is_routed = deck::feed_forward_sizes(model).is_routed()};
}

}  // namespace nanotron::model
