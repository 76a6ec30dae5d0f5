// ranks: 1 2 3
// The gradient of models that drop elements, with the mask of two samples.

#include "unit/model/gradient_check.hpp"

namespace nanotron::model {
namespace {

constexpr auto by_rows = deck::TpMode::reduce_scatter, replicated = deck::TpMode::all_reduce;

void to_dropout(deck::ModelConfig& m) {
  m.hidden_dropout = 0.3;
  m.attention_dropout = 0.4;
}

void to_hidden(deck::ModelConfig& m) { m.hidden_dropout = 0.5; }

void to_attention(deck::ModelConfig& m) { m.attention_dropout = 0.5; }

// The layers of Fugaku-LLM: GPT-2's.
void to_gpt2(deck::ModelConfig& m) {
  to_dropout(m);
  m.num_key_value_heads = 3;
  m.head_dim = 5;
  m.normalization = deck::Normalization::layer_norm;
  m.position_embedding_type = deck::PositionEmbedding::learned_absolute;
  m.max_position_embeddings = 11;
  m.hidden_act = deck::HiddenAct::gelu_new;
  m.o_proj_bias = m.mlp_bias = true;
}

// What else changes probabilities and the sums of blocks.
void to_scores(deck::ModelConfig& m) {
  to_dropout(m);
  m.attn_logit_softcapping = 0.5;
  m.attention_sinks = true;
  m.sliding_window = 4;
  m.residual_multiplier = 0.4;
  m.embedding_norm = true;
}

void to_parallel(deck::ModelConfig& m) {
  to_attention(m);
  m.parallel_residual = deck::ParallelResidual::two_norms;
}

void to_post(deck::ModelConfig& m) {
  to_attention(m);
  m.norm_placement = deck::NormPlacement::post;
}

void to_latent(deck::ModelConfig& m) {
  to_dropout(m);
  m.num_key_value_heads = 3;
  m.q_lora_rank = 8;
  m.kv_lora_rank = 10;
  m.qk_nope_head_dim = 5;
  m.qk_rope_head_dim = 4;
  m.v_head_dim = 7;
  m.head_dim = 9;
}

constexpr deck::MoeConfig experts{.num_experts = 5,
                                  .num_experts_per_tok = 2,
                                  .moe_intermediate_size = 7,
                                  .shared_expert_intermediate_size = 9,
                                  .norm_topk_prob = true,
                                  .router_aux_loss_coef = 0.0};

INSTANTIATE_TEST_SUITE_P(Dropout, Gradient,
                         testing::Values(Variant{"both", false, false, false, replicated, {}, to_dropout},
                                         Variant{"both_split", true, true, false, by_rows, {}, to_dropout},
                                         Variant{"hidden_split", false, false, false, by_rows, {}, to_hidden},
                                         Variant{"attention", false, false, true, replicated, {}, to_attention},
                                         Variant{"gpt2", true, true, false, replicated, {}, to_gpt2},
                                         Variant{"gpt2_split", true, true, false, by_rows, {}, to_gpt2},
                                         Variant{"scores", false, false, false, by_rows, {}, to_scores},
                                         Variant{"parallel", false, false, false, replicated, {}, to_parallel},
                                         Variant{"post", false, false, false, by_rows, {}, to_post},
                                         Variant{"latent", false, false, false, by_rows, {}, to_latent},
                                         Variant{"experts", false, false, false, replicated, experts, to_dropout},
                                         Variant{"experts_split", false, false, false, by_rows, experts, to_dropout}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace nanotron::model
