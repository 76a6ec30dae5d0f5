#include "nanotron/nn/attention/score_map.hpp"

namespace nanotron::nn {

kernels::ScoreMap score_map(const deck::ModelConfig& model) {
  const bool is_alibi = model.position_embedding_type == deck::PositionEmbedding::alibi;
  return {.scale = model.attention_multiplier,
          .cap = model.attn_logit_softcapping,
          .alibi_heads = is_alibi ? model.num_attention_heads : 0};
}

}  // namespace nanotron::nn
