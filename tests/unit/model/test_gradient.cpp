// ranks: 1 2 3
// The gradient of the whole model in fp64 against central finite differences of its loss.

#include "unit/model/gradient_check.hpp"

namespace nanotron::model {
namespace {

void to_gpt2(deck::ModelConfig& m) {
  m.num_key_value_heads = 3;
  m.head_dim = 5;  // nothing is turned
  m.normalization = deck::Normalization::layer_norm;
  m.position_embedding_type = deck::PositionEmbedding::learned_absolute;
  m.max_position_embeddings = 11;
  m.hidden_act = deck::HiddenAct::gelu_new;
  m.o_proj_bias = m.mlp_bias = true;
}

void to_exact_gelu(deck::ModelConfig& m) {
  to_gpt2(m);
  m.hidden_act = deck::HiddenAct::gelu;
}

void to_window(deck::ModelConfig& m) { m.sliding_window = 4; }

// One layer with a window and its own base, one with neither window nor rotation.
void to_patterns(deck::ModelConfig& m) {
  to_window(m);
  m.window_layers = m.rope_layers = "1:1";
  m.rope_local_theta = 7.0;
}

void to_llama3(deck::ModelConfig& m) {
  m.rope_type = deck::RopeType::llama3;
  m.rope_factor = 8.0;
  m.original_max_position_embeddings = 64;
  m.mlp_bias = true;  // of gate and up too
}

void to_yarn(deck::ModelConfig& m) {
  m.rope_type = deck::RopeType::yarn;
  m.rope_factor = 4.0;
  m.original_max_position_embeddings = 64;
}

// Neighbours in pairs, in four of six elements of a head.
void to_partial(deck::ModelConfig& m) {
  m.partial_rotary_factor = 0.7;
  m.rope_interleaved = true;
}

void to_longrope(deck::ModelConfig& m) {
  m.rope_type = deck::RopeType::longrope;
  m.rope_factor = 4.0;
  m.original_max_position_embeddings = 8;
  m.rope_short_factor = "1 1 1";
  m.rope_long_factor = "1.5 2, 3";
}
void to_capped(deck::ModelConfig& m) {
  m.attn_logit_softcapping = 0.5;
  m.attention_multiplier = 0.8;
}

void to_capped_head(deck::ModelConfig& m) {
  m.final_logit_softcapping = 1.5;
  m.lm_head_bias = true;
  m.tie_word_embeddings = false;
}

void to_alibi(deck::ModelConfig& m) { m.position_embedding_type = deck::PositionEmbedding::alibi; }

void to_no_positions(deck::ModelConfig& m) { m.position_embedding_type = deck::PositionEmbedding::none; }

void to_sinks(deck::ModelConfig& m) {
  to_patterns(m);
  m.attention_sinks = true;
}

// Over the query heads of several ranks, and a key head that all of them have.
void to_projection_norm(deck::ModelConfig& m) { m.qk_norm_over = deck::QkNormOver::projection; }

void to_projection_norm_one_plus(deck::ModelConfig& m) {
  to_projection_norm(m);
  m.norm_weight = deck::NormWeight::one_plus;
}

constexpr deck::MoeConfig experts(int shared, bool norm) {
  return {.num_experts = 5,
          .num_experts_per_tok = 2,
          .moe_intermediate_size = 7,
          .shared_expert_intermediate_size = shared,
          .norm_topk_prob = norm,
          .router_aux_loss_coef = 0.0};
}

// With router losses, as large as the other.
constexpr deck::MoeConfig balanced(deck::AuxLossScale scale) {
  deck::MoeConfig moe = experts(9, true);
  moe.num_experts_per_tok = 3;
  moe.router_aux_loss_coef = 2.0;
  moe.router_aux_loss_scale = scale;
  moe.router_z_loss_coef = 0.3;
  return moe;
}

// As many experts as 1, 2 and 3 ranks share.
constexpr deck::MoeConfig of_six(deck::MoeConfig moe) {
  moe.num_experts = 6;
  return moe;
}

// DeepSeek-V3 without its attention.
constexpr deck::MoeConfig grouped(deck::RouterScore score) {
  deck::MoeConfig moe = balanced(deck::AuxLossScale::per_layer);
  moe.num_experts = 6;
  moe.shared_expert_intermediate_size = 0;
  moe.n_shared_experts = 2;
  moe.router_score = score;
  moe.n_group = 3;
  moe.topk_group = 2;
  moe.routed_scaling_factor = 1.8;
  moe.router_bias = true;
  moe.router_z_loss_coef = 0.0;
  return moe;
}

// GPT-OSS without its attention.
void to_biases(deck::ModelConfig& m) {
  m.mlp_bias = m.moe.router_bias = true;
  m.hidden_act = deck::HiddenAct::swiglu_clamped;
  m.swiglu_limit = 0.5;
}

// Two layers that predict later tokens.
void to_later_tokens(deck::ModelConfig& m) { deck::append_layers(m, 2); }

void to_later_tokens_of_latents(deck::ModelConfig& m) {
  to_later_tokens(m);
  m.num_key_value_heads = 3;
  m.q_lora_rank = 8;
  m.kv_lora_rank = 7;
  m.qk_nope_head_dim = 4;
  m.qk_rope_head_dim = 2;
  m.v_head_dim = 5;
}

void to_later_tokens_with_layer_norm(deck::ModelConfig& m) {
  deck::append_layers(m, 1);
  m.normalization = deck::Normalization::layer_norm;
  m.embedding_multiplier = 1.7;
  m.logits_scaling = 0.8;
}

deck::MoeConfig in_layer_1(deck::MoeConfig moe) {
  moe.expert_layers = "1";
  return moe;
}

Variant whole(const char* name, ExpertRanks ranks, deck::TpMode mode, const deck::MoeConfig& moe,
              void (*change)(deck::ModelConfig&) = nullptr) {
  Variant v{name, false, false, false, mode, moe, change};
  v.experts = ranks;
  return v;
}

INSTANTIATE_TEST_SUITE_P(
    Models, Gradient,
    testing::Values(
        Variant{"llama", false, false, false, deck::TpMode::all_reduce},
        Variant{"qwen2", true, true, false, deck::TpMode::all_reduce},
        Variant{"qwen3", false, false, true, deck::TpMode::all_reduce},
        Variant{"llama_split", false, false, false, deck::TpMode::reduce_scatter},
        Variant{"qwen2_split", true, true, false, deck::TpMode::reduce_scatter},
        Variant{"qwen3_split", false, false, true, deck::TpMode::reduce_scatter},
        Variant{"gpt2", true, true, false, deck::TpMode::all_reduce, {}, to_gpt2},
        Variant{"gpt2_split", true, true, false, deck::TpMode::reduce_scatter, {}, to_gpt2},
        Variant{"exact_gelu", false, true, false, deck::TpMode::all_reduce, {}, to_exact_gelu},
        Variant{"llama3_rope", false, false, false, deck::TpMode::reduce_scatter, {}, to_llama3},
        Variant{"yarn", false, false, true, deck::TpMode::all_reduce, {}, to_yarn},
        Variant{"window", false, false, false, deck::TpMode::all_reduce, {}, to_window},
        Variant{"partial_rotary", false, false, false, deck::TpMode::all_reduce, {}, to_partial},
        Variant{"partial_rotary_bias", true, true, false, deck::TpMode::reduce_scatter, {}, to_partial},
        Variant{"longrope", false, false, true, deck::TpMode::all_reduce, {}, to_longrope},
        Variant{"capped", false, false, true, deck::TpMode::all_reduce, {}, to_capped},
        Variant{"alibi", false, true, false, deck::TpMode::reduce_scatter, {}, to_alibi},
        Variant{"no_positions", false, false, false, deck::TpMode::all_reduce, {}, to_no_positions},
        Variant{"sinks", false, true, false, deck::TpMode::all_reduce, {}, to_sinks},
        Variant{"projection_norm", false, true, true, deck::TpMode::all_reduce, {}, to_projection_norm},
        Variant{
            "projection_norm_split", false, false, true, deck::TpMode::reduce_scatter, {}, to_projection_norm_one_plus},
        Variant{"patterns", false, false, false, deck::TpMode::reduce_scatter, {}, to_patterns},
        Variant{"mixtral", false, false, false, deck::TpMode::all_reduce, experts(0, true)},
        Variant{"qwen2_moe", false, true, false, deck::TpMode::all_reduce, experts(9, false)},
        Variant{"qwen2_moe_split", false, true, false, deck::TpMode::reduce_scatter, experts(9, false)},
        Variant{"balanced_per_layer", false, false, false, deck::TpMode::all_reduce,
                balanced(deck::AuxLossScale::per_layer)},
        Variant{"balanced_hugging_face", false, false, false, deck::TpMode::all_reduce,
                balanced(deck::AuxLossScale::hugging_face)},
        Variant{"balanced_hugging_face_split", false, false, false, deck::TpMode::reduce_scatter,
                balanced(deck::AuxLossScale::hugging_face)}),
    [](const auto& info) { return std::string(info.param.name); });

INSTANTIATE_TEST_SUITE_P(
    Routers, Gradient,
    testing::Values(
        Variant{"sigmoid_groups", false, false, false, deck::TpMode::all_reduce, grouped(deck::RouterScore::sigmoid)},
        Variant{"sigmoid_groups_split", false, false, false, deck::TpMode::reduce_scatter,
                grouped(deck::RouterScore::sigmoid)},
        Variant{"softmax_groups", false, false, false, deck::TpMode::all_reduce, grouped(deck::RouterScore::softmax)},
        Variant{"expert_biases", false, true, false, deck::TpMode::all_reduce, experts(0, true), to_biases},
        Variant{"expert_biases_split", false, false, false, deck::TpMode::reduce_scatter, in_layer_1(experts(0, false)),
                to_biases},
        Variant{"dense_first", false, false, false, deck::TpMode::all_reduce,
                in_layer_1(balanced(deck::AuxLossScale::per_layer))},
        Variant{"dense_first_split", false, false, false, deck::TpMode::reduce_scatter,
                in_layer_1(grouped(deck::RouterScore::sigmoid))}),
    [](const auto& info) { return std::string(info.param.name); });

INSTANTIATE_TEST_SUITE_P(WholeExperts, Gradient,
                         testing::Values(whole("on_each", ExpertRanks::on_each, deck::TpMode::all_reduce,
                                               experts(9, true)),
                                         whole("on_each_split", ExpertRanks::on_each, deck::TpMode::reduce_scatter,
                                               balanced(deck::AuxLossScale::per_layer)),
                                         whole("over_ranks", ExpertRanks::over_ranks, deck::TpMode::all_reduce,
                                               of_six(balanced(deck::AuxLossScale::hugging_face))),
                                         whole("over_ranks_split", ExpertRanks::over_ranks,
                                               deck::TpMode::reduce_scatter, of_six(experts(9, false))),
                                         whole("biases_over_ranks_split", ExpertRanks::over_ranks,
                                               deck::TpMode::reduce_scatter, of_six(experts(0, true)), to_biases),
                                         whole("groups_over_ranks", ExpertRanks::over_ranks, deck::TpMode::all_reduce,
                                               in_layer_1(grouped(deck::RouterScore::sigmoid)))),
                         [](const auto& info) { return std::string(info.param.name); });

INSTANTIATE_TEST_SUITE_P(
    Pairs, Gradient,
    testing::Values(
        Variant{"pairs", false, false, false, deck::TpMode::all_reduce, {}, nullptr, 0.0, "", 0.8},
        Variant{"pairs_split", true, true, true, deck::TpMode::reduce_scatter, {}, nullptr, 0.0, "", 0.8},
        Variant{"pairs_adapted", false, false, false, deck::TpMode::all_reduce, {}, nullptr, 0.0, "*_proj", 0.8},
        Variant{"pairs_capped_head", true, false, false, deck::TpMode::all_reduce, {}, to_capped_head, 0.0, "", 0.8}),
    [](const auto& info) { return std::string(info.param.name); });

INSTANTIATE_TEST_SUITE_P(
    LaterTokens, Gradient,
    testing::Values(
        Variant{"later_tokens", false, false, false, deck::TpMode::all_reduce, {}, to_later_tokens},
        Variant{"later_tokens_split", false, false, false, deck::TpMode::reduce_scatter, {}, to_later_tokens},
        Variant{"later_tokens_tied", true, true, true, deck::TpMode::reduce_scatter, {}, to_later_tokens},
        Variant{"later_tokens_latent", false, false, false, deck::TpMode::all_reduce, {}, to_later_tokens_of_latents},
        Variant{"later_tokens_layer_norm",
                true,
                false,
                false,
                deck::TpMode::all_reduce,
                {},
                to_later_tokens_with_layer_norm},
        Variant{"later_tokens_routed", false, false, false, deck::TpMode::all_reduce,
                balanced(deck::AuxLossScale::hugging_face), to_later_tokens},
        Variant{"later_tokens_dense_first_split", false, false, false, deck::TpMode::reduce_scatter,
                in_layer_1(grouped(deck::RouterScore::sigmoid)), to_later_tokens}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace nanotron::model
