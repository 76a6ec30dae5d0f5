#include "nanotron/deck/attention_sizes.hpp"

namespace nanotron::deck {
namespace {

double real(std::int64_t n) { return static_cast<double>(n); }

AttentionSizes of_latent(const ModelConfig& m) {
  AttentionSizes a{.is_compressed = true,
                   .head_dim = m.qk_nope_head_dim + m.qk_rope_head_dim,
                   .rotated = m.qk_rope_head_dim,
                   .value_dim = m.v_head_dim};
  const double heads = real(m.num_attention_heads), hidden = real(m.hidden_size), query = heads * real(a.head_dim);
  const double rank = real(m.q_lora_rank);
  const double of_query = m.q_lora_rank > 0 ? hidden * rank + rank * query : hidden * query;
  a.matrices = of_query + hidden * real(m.kv_lora_rank + m.qk_rope_head_dim) +
               real(m.kv_lora_rank) * heads * real(m.qk_nope_head_dim + m.v_head_dim) +
               hidden * heads * real(m.v_head_dim);
  return a;
}

}  // namespace

AttentionSizes attention_sizes(const ModelConfig& m) {
  if (m.kv_lora_rank > 0) return of_latent(m);
  const std::int64_t width = m.head_dim > 0              ? m.head_dim
                             : m.num_attention_heads > 0 ? m.hidden_size / m.num_attention_heads
                                                         : 0;
  const double query = real(m.num_attention_heads * width), key = real(m.num_key_value_heads * width);
  return {.head_dim = width,
          .rotated = width,
          .value_dim = width,
          .matrices = real(m.hidden_size) * (2.0 * query + 2.0 * key)};
}

}  // namespace nanotron::deck
