#include "nanotron/deck/attention_sizes.hpp"
#include "table_builder.hpp"

namespace nanotron::model::detail {
namespace {

Range times(Range r, index_t factor) { return {r.begin * factor, r.end * factor}; }

// Sharing is a property of the group, not of one rank: every rank must know whether any KV head is stored twice.
bool key_heads_are_shared(const deck::ModelConfig& m, int tp_size) {
  for (int rank = 0; rank < tp_size; ++rank) {
    const nn::HeadShard heads = nn::shard_heads(m.num_attention_heads, m.num_key_value_heads, tp_size, tp_size, rank);
    if (heads.key != heads.owned_key) return true;
  }
  return false;
}

}  // namespace

AttentionParts attention_parts(const deck::ModelConfig& m, const ParameterTable& table, int tp_size) {
  // With 'layout' each of the ranks that share a key head has its whole gradient
  // (nn/attention/shared_key_attention.cpp).
  const bool partial = table.layout.tensor_shards == 0 && key_heads_are_shared(m, tp_size);
  return {exclusively(table.heads.query),
          exclusively(times(table.heads.query, m.head_dim)),
          {times(table.heads.key, m.head_dim), times(table.heads.owned_key, m.head_dim), partial},
          table.layout.tp_mode == deck::TpMode::reduce_scatter && tp_size > 1,
          table.layout.tensor_shards == 0};
}

void add_attention_1d(TableBuilder& build, const deck::ModelConfig& m, const AttentionParts& parts) {
  const std::string attention = "model/layers/self_attn/";
  const index_t query = m.num_attention_heads * m.head_dim;
  const index_t key = m.num_key_value_heads * m.head_dim;
  if (deck::attention_sizes(m).is_compressed) add_compressed_1d(build, m, parts);
  if (m.qk_norm && m.qk_norm_over == deck::QkNormOver::projection) {
    const Initial initial = m.norm_weight == deck::NormWeight::plain ? Initial::ones : Initial::zeros;
    build.bias(attention + "q_norm/weight", query, parts.query, initial);
    build.align();
    build.bias(attention + "k_norm/weight", key, parts.key, initial);
    build.align();
  } else if (m.qk_norm) {
    build.norm_weight(attention + "q_norm/", m.head_dim, parts.head_sums_are_partial);
    build.norm_weight(attention + "k_norm/", m.head_dim, parts.head_sums_are_partial);
  }
  if (m.qkv_bias) {
    build.bias(attention + "q_proj/bias", query, parts.query);
    build.bias(attention + "k_proj/bias", key, parts.key);
    build.bias(attention + "v_proj/bias", key, parts.key);
    build.align();
  }
  if (m.attention_sinks) {
    build.bias(attention + "sinks", m.num_attention_heads, parts.query_heads);
    build.align();
  }
  if (m.o_proj_bias) {
    build.whole_1d(attention + "o_proj/bias", m.hidden_size, Initial::zeros, false);
    build.align();
  }
}

void add_attention(TableBuilder& build, const deck::ModelConfig& m, const AttentionParts& parts) {
  if (deck::attention_sizes(m).is_compressed) return add_compressed(build, m, parts);
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

}  // namespace nanotron::model::detail
