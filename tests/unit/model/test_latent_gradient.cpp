// ranks: 1 2 3
// The gradient of models with latent attention.

#include "unit/model/gradient_check.hpp"

namespace nanotron::model {
namespace {

constexpr auto by_rows = deck::TpMode::reduce_scatter, replicated = deck::TpMode::all_reduce;

void to_latent(deck::ModelConfig& m) {
  m.num_key_value_heads = 3;
  m.q_lora_rank = 8;
  m.kv_lora_rank = 10;
  m.qk_nope_head_dim = 5;
  m.qk_rope_head_dim = 4;
  m.v_head_dim = 7;
  m.head_dim = 9;
  m.rope_interleaved = true;
}

// Queries are projected from the hidden states.
void to_latent_of_keys(deck::ModelConfig& m) {
  to_latent(m);
  m.q_lora_rank = 0;
  m.rope_interleaved = false;
  m.o_proj_bias = true;
}

// Values need no padding; scores as in DeepSeek-V3 with YaRN, a sink and a window.
void to_latent_with_scores(deck::ModelConfig& m) {
  to_latent(m);
  m.v_head_dim = 9;
  m.attention_multiplier = 0.5;
  m.rope_type = deck::RopeType::yarn;
  m.rope_factor = 4.0;
  m.original_max_position_embeddings = 64;
  m.attention_sinks = true;
  m.sliding_window = 4;
}

INSTANTIATE_TEST_SUITE_P(
    LatentModels, Gradient,
    testing::Values(Variant{"latent", false, false, false, replicated, {}, to_latent},
                    Variant{"latent_split", true, false, false, by_rows, {}, to_latent},
                    Variant{"latent_keys", true, false, false, replicated, {}, to_latent_of_keys},
                    Variant{"latent_keys_split", false, false, false, by_rows, {}, to_latent_of_keys},
                    Variant{"latent_scores", false, false, false, replicated, {}, to_latent_with_scores},
                    Variant{"latent_scores_split", false, false, false, by_rows, {}, to_latent_with_scores}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace nanotron::model
