// ranks: 1 2 3
// The gradient of models with other norms, activations, and blocks that join the hidden states in other ways.

#include "unit/model/gradient_check.hpp"

namespace nanotron::model {
namespace {

constexpr auto by_rows = deck::TpMode::reduce_scatter, replicated = deck::TpMode::all_reduce;

constexpr deck::MoeConfig experts(int shared, bool norm) {
  return {.num_experts = 5,
          .num_experts_per_tok = 2,
          .moe_intermediate_size = 7,
          .shared_expert_intermediate_size = shared,
          .norm_topk_prob = norm,
          .router_aux_loss_coef = 0.0};
}

deck::MoeConfig in_layer_1(deck::MoeConfig moe) {
  moe.expert_layers = "1";
  return moe;
}

// LayerNorm, GELU and biases.
void to_gpt(deck::ModelConfig& m) {
  m.normalization = deck::Normalization::layer_norm;
  m.hidden_act = deck::HiddenAct::gelu;
  m.o_proj_bias = m.mlp_bias = true;
}

void to_granite(deck::ModelConfig& m) {
  m.residual_multiplier = 0.4;
  m.o_proj_bias = m.mlp_bias = true;  // they are multiplied too
}

template <deck::HiddenAct act>
void to_activation(deck::ModelConfig& m) {
  m.hidden_act = act;
  m.swiglu_limit = 0.7;  // of some of the values
}

template <deck::NormWeight weight>
void to_norm_weight(deck::ModelConfig& m) {
  m.norm_weight = weight;
}

template <deck::NormWeight weight>
void to_layer_norm(deck::ModelConfig& m) {
  m.normalization = deck::Normalization::layer_norm;
  m.norm_weight = weight;
}

void to_norm_without_bias(deck::ModelConfig& m) {
  m.normalization = deck::Normalization::layer_norm;
  m.norm_bias = false;
}

template <deck::NormPlacement placement>
void to_placement(deck::ModelConfig& m) {
  m.norm_placement = placement;
}

void to_gemma2(deck::ModelConfig& m) {
  m.norm_placement = deck::NormPlacement::sandwich;
  m.norm_weight = deck::NormWeight::one_plus;
  m.hidden_act = deck::HiddenAct::geglu_tanh;
}

void to_olmo2(deck::ModelConfig& m) {
  m.norm_placement = deck::NormPlacement::post;
  m.qk_norm_over = deck::QkNormOver::projection;
}

void to_post_layer_norm(deck::ModelConfig& m) {
  to_gpt(m);
  m.norm_placement = deck::NormPlacement::post;
}

template <deck::ParallelResidual kind>
void to_parallel(deck::ModelConfig& m) {
  m.parallel_residual = kind;
}

// Pythia, Phi 2.
template <deck::ParallelResidual kind>
void to_parallel_layer_norm(deck::ModelConfig& m) {
  to_gpt(m);
  m.parallel_residual = kind;
}

// Tiles divide neither the tokens nor the chunks.
INSTANTIATE_TEST_SUITE_P(
    Tiles, Gradient,
    testing::Values(Variant{"tiles", false, true, false, replicated, {}, nullptr, 0.0, "", 0.0, 5},
                    Variant{"tiles_split", false, false, true, by_rows, {}, nullptr, 0.0, "", 0.0, 4},
                    Variant{"tiles_gpt", true, true, false, replicated, {}, to_gpt, 0.0, "", 0.0, 7},
                    Variant{"tiles_gpt_split", true, true, false, by_rows, {}, to_gpt, 0.0, "", 0.0, 1},
                    Variant{"tiles_granite", false, true, false, replicated, {}, to_granite, 0.0, "", 0.0, 4},
                    Variant{"tiles_gemma2_split", true, false, true, by_rows, {}, to_gemma2, 0.0, "", 0.0, 3},
                    Variant{"tiles_phi",
                            false,
                            true,
                            false,
                            by_rows,
                            {},
                            to_parallel_layer_norm<deck::ParallelResidual::one_norm>,
                            0.0,
                            "",
                            0.0,
                            5},
                    Variant{"tiles_adapted", false, false, false, replicated, {}, nullptr, 0.0, "*_proj", 0.0, 4},
                    Variant{"tiles_dense_first", false, false, false, by_rows, in_layer_1(experts(9, true)), nullptr,
                            0.0, "", 0.0, 4}),
    [](const auto& info) { return std::string(info.param.name); });

INSTANTIATE_TEST_SUITE_P(
    Blocks, Gradient,
    testing::Values(
        Variant{"one_plus", false, false, true, replicated, {}, to_norm_weight<deck::NormWeight::one_plus>},
        Variant{"one_plus_split", false, false, true, by_rows, {}, to_norm_weight<deck::NormWeight::one_plus>},
        Variant{"no_weight", false, true, false, by_rows, {}, to_norm_weight<deck::NormWeight::none>},
        Variant{"layer_norm_1p", false, false, false, by_rows, {}, to_layer_norm<deck::NormWeight::one_plus>},
        Variant{"olmo", false, false, false, replicated, {}, to_layer_norm<deck::NormWeight::none>},
        Variant{"norm_without_bias", false, true, false, by_rows, {}, to_norm_without_bias},
        Variant{"relu", false, true, false, replicated, {}, to_activation<deck::HiddenAct::relu>},
        Variant{"relu2", false, false, false, replicated, {}, to_activation<deck::HiddenAct::relu2>},
        Variant{"xielu", false, false, true, replicated, {}, to_activation<deck::HiddenAct::xielu>},
        Variant{"xielu_split", true, false, true, by_rows, {}, to_activation<deck::HiddenAct::xielu>},
        Variant{"geglu", false, false, false, by_rows, {}, to_activation<deck::HiddenAct::geglu>},
        Variant{"geglu_tanh", false, true, false, replicated, {}, to_activation<deck::HiddenAct::geglu_tanh>},
        Variant{"clamped", false, false, false, replicated, {}, to_activation<deck::HiddenAct::swiglu_clamped>},
        Variant{"clamped_experts", false, false, false, replicated, experts(9, true),
                to_activation<deck::HiddenAct::swiglu_clamped>},
        Variant{"post", false, false, true, replicated, {}, to_placement<deck::NormPlacement::post>},
        Variant{"post_split", false, true, false, by_rows, {}, to_placement<deck::NormPlacement::post>},
        Variant{"post_layer_norm", true, true, false, by_rows, {}, to_post_layer_norm},
        Variant{"olmo2", false, false, true, replicated, {}, to_olmo2},
        Variant{"olmo2_split", false, false, true, by_rows, {}, to_olmo2},
        Variant{"post_experts", false, false, false, replicated, experts(9, false),
                to_placement<deck::NormPlacement::post>},
        Variant{"granite", false, true, false, replicated, {}, to_granite},
        Variant{"granite_split", true, true, false, by_rows, {}, to_granite},
        Variant{"granite_experts", false, false, false, replicated, experts(9, false),
                [](deck::ModelConfig& m) { m.residual_multiplier = 0.4; }},
        Variant{"gemma2", true, false, false, replicated, {}, to_gemma2},
        Variant{"gemma2_split", true, false, true, by_rows, {}, to_gemma2},
        Variant{
            "pythia", false, true, false, replicated, {}, to_parallel_layer_norm<deck::ParallelResidual::two_norms>},
        Variant{
            "pythia_split", false, true, false, by_rows, {}, to_parallel_layer_norm<deck::ParallelResidual::two_norms>},
        Variant{"phi_split", false, true, false, by_rows, {}, to_parallel_layer_norm<deck::ParallelResidual::one_norm>},
        Variant{"falcon", true, false, false, replicated, {}, to_parallel<deck::ParallelResidual::one_norm>},
        Variant{"parallel_experts_split", true, false, false, by_rows, experts(0, true),
                to_parallel<deck::ParallelResidual::one_norm>}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace nanotron::model
