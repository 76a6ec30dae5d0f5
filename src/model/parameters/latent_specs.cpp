// The parameters of multi-head latent attention (nn/attention/latent_attention.hpp). The down projections are
// contiguous: one GEMM computes c_q | c_kv | k_rope.
#include "table_builder.hpp"

namespace nanotron::model::detail {
namespace {

const std::string attention = "model/layers/self_attn/";

}  // namespace

void add_compressed_1d(TableBuilder& build, const deck::ModelConfig& m, const AttentionParts& parts) {
  if (m.q_lora_rank > 0) build.norm_weight(attention + "q_a_layernorm/", m.q_lora_rank, parts.rows_are_sharded);
  build.norm_weight(attention + "kv_a_layernorm/", m.kv_lora_rank, parts.rows_are_sharded);
}

void add_compressed(TableBuilder& build, const deck::ModelConfig& m, const AttentionParts& parts) {
  const index_t width = m.qk_nope_head_dim + m.qk_rope_head_dim, key_value = m.qk_nope_head_dim + m.v_head_dim;
  const Range heads{parts.query.local.begin / width, parts.query.local.end / width};
  const auto of_heads = [&](index_t each) { return exclusively({heads.begin * each, heads.end * each}); };
  const index_t count = m.num_attention_heads;
  if (m.q_lora_rank > 0)
    build.whole_matrix(attention + "q_a_proj/weight", m.q_lora_rank, m.hidden_size, Role::hidden,
                       parts.rows_are_sharded);
  build.whole_matrix(attention + "kv_a_proj_with_mqa/weight", m.kv_lora_rank + m.qk_rope_head_dim, m.hidden_size,
                     Role::hidden, parts.rows_are_sharded);
  build.align();
  if (m.q_lora_rank > 0) {
    build.matrix(attention + "q_b_proj/weight", count * width, m.q_lora_rank, Partition::column_parallel,
                 of_heads(width), Role::hidden);
  } else {
    build.matrix(attention + "q_proj/weight", count * width, m.hidden_size, Partition::column_parallel, of_heads(width),
                 Role::hidden);
  }
  build.align();
  build.matrix(attention + "kv_b_proj/weight", count * key_value, m.kv_lora_rank, Partition::column_parallel,
               of_heads(key_value), Role::hidden);
  build.align();
  build.matrix(attention + "o_proj/weight", m.hidden_size, count * m.v_head_dim, Partition::row_parallel,
               of_heads(m.v_head_dim), Role::residual);
  build.align();
}

}  // namespace nanotron::model::detail
