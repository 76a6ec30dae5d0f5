// ranks: 1 2 3
// The gradient of models with factors and norms at their ends: embedding and logits.

#include "unit/model/gradient_check.hpp"

namespace nanotron::model {
namespace {

constexpr auto by_rows = deck::TpMode::reduce_scatter, replicated = deck::TpMode::all_reduce;
constexpr double z_loss = 0.3;

void to_ends(deck::ModelConfig& m) {
  m.embedding_multiplier = 3.0;
  m.embedding_norm = true;
  m.logits_scaling = 0.7;
  m.final_logit_softcapping = 1.5;
}

void to_multiplier(deck::ModelConfig& m) { m.embedding_multiplier = 0.4; }

void to_bloom(deck::ModelConfig& m) {
  m.normalization = deck::Normalization::layer_norm;
  m.embedding_norm = true;
}

void to_learned_positions(deck::ModelConfig& m) {
  to_ends(m);
  m.normalization = deck::Normalization::layer_norm;
  m.position_embedding_type = deck::PositionEmbedding::learned_absolute;
  m.max_position_embeddings = 11;
}

void to_head_bias(deck::ModelConfig& m) {
  m.lm_head_bias = true;
  m.logits_scaling = 0.7;
  m.final_logit_softcapping = 1.5;
}

INSTANTIATE_TEST_SUITE_P(
    Models, Gradient,
    testing::Values(Variant{"ends", false, false, false, replicated, {}, to_ends, z_loss},
                    Variant{"ends_split", true, false, false, by_rows, {}, to_ends, z_loss},
                    Variant{"z_loss", false, true, false, by_rows, {}, nullptr, z_loss},
                    Variant{"multiplier_tied", true, false, false, by_rows, {}, to_multiplier},
                    Variant{"bloom", true, false, false, replicated, {}, to_bloom},
                    Variant{"bloom_split", false, true, false, by_rows, {}, to_bloom},
                    Variant{"head_bias", false, false, false, replicated, {}, to_head_bias, z_loss},
                    Variant{"head_bias_tied_split", true, false, false, by_rows, {}, to_head_bias},
                    Variant{"learned_positions", false, false, false, by_rows, {}, to_learned_positions, z_loss}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace nanotron::model
