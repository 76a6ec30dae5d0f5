#include "nanotron/deck/attention_sizes.hpp"
#include "nanotron/deck/config.hpp"
#include "nanotron/nn/checks.hpp"

namespace nanotron::nn {
namespace {

using namespace deck::phrases;

void check_widths(const deck::ModelConfig& m, deck::Findings& f) {
  if (!f.is_valid({"model.qk_nope_head_dim", "model.qk_rope_head_dim", "model.v_head_dim"})) return;
  const std::int64_t width = deck::attention_sizes(m).head_dim;
  if (m.qk_nope_head_dim == 0 || m.qk_rope_head_dim == 0 || m.v_head_dim == 0) {
    f.error({"model.kv_lora_rank"}, "latent attention needs the widths of its heads",
            "qk_nope_head_dim, qk_rope_head_dim and v_head_dim, as in DeepSeek-V3: 128, 64 and 128");
    return;
  }
  if (m.qk_rope_head_dim % 2 != 0) {
    f.error({"model.qk_rope_head_dim"}, "qk_rope_head_dim = " + text(m.qk_rope_head_dim) + " is odd",
            "an even width: the rotary embedding rotates pairs");
  }
  if (width > 256) {
    f.error({"model.qk_nope_head_dim", "model.qk_rope_head_dim"},
            "queries of " + text(width) + " elements (qk_nope_head_dim + qk_rope_head_dim) are too wide",
            "at most 256");
  }
  if (m.v_head_dim > width) {
    f.error({"model.v_head_dim", "model.qk_nope_head_dim", "model.qk_rope_head_dim"},
            "v_head_dim = " + text(m.v_head_dim) + " is more than the " + text(width) +
                " elements of a key (qk_nope_head_dim + qk_rope_head_dim), to which values are padded",
            "at most " + text(width));
  }
  if (m.head_dim != 0 && m.head_dim != width && f.is_valid({"model.head_dim"})) {
    f.error({"model.head_dim"}, "head_dim = " + text(m.head_dim) + " of latent attention",
            "0, or qk_nope_head_dim + qk_rope_head_dim = " + text(width));
  }
}

void check_combinations(const deck::Config& c, deck::Findings& f) {
  const deck::ModelConfig& m = c.model;
  const auto refuse = [&](bool is_set, const char* key, const std::string& what, const std::string& change) {
    if (is_set && f.is_valid({key})) f.error({key, "model.kv_lora_rank"}, what, change, "or kv_lora_rank = 0");
  };
  refuse(m.num_key_value_heads != 0 && m.num_key_value_heads != m.num_attention_heads, "model.num_key_value_heads",
         "latent attention has a key head for each query head", "num_key_value_heads = 0");
  refuse(m.qkv_bias, "model.qkv_bias", "the projections of latent attention have no biases", "qkv_bias = .false.");
  refuse(m.qk_norm, "model.qk_norm", "latent attention normalises compressed queries and keys, not their heads",
         "qk_norm = .false.");
  refuse(!m.has_rotary(), "model.position_embedding_type", "latent attention has rotary positions only",
         "position_embedding_type = 'rope'");
  const std::int64_t shards = deck::sum_shards(c).tensor, heads = m.num_attention_heads;
  if (c.precision.reproducible == deck::Reproducible::layout && shards <= heads && heads % shards != 0 &&
      f.is_valid({"precision.tensor_shards", "model.num_attention_heads"})) {
    f.error({"precision.tensor_shards", "model.kv_lora_rank"},
            "tensor_shards = " + text(shards) + " does not divide the " + text(heads) + " heads of latent attention",
            "a divisor of " + text(heads));
  }
}

}  // namespace

void check_compressed(const deck::Config& c, deck::Findings& f) {
  if (c.model.kv_lora_rank == 0) {
    return refuse_unused(c,
                         {"model.q_lora_rank", "model.qk_nope_head_dim", "model.qk_rope_head_dim", "model.v_head_dim"},
                         "latent attention", "kv_lora_rank more than 0", f);
  }
  check_widths(c.model, f);
  check_combinations(c, f);
}

}  // namespace nanotron::nn
