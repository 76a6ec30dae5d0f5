#pragma once
// &model and &moe as const structs: what a model is made of. Members are named exactly as the deck's keys, which are
// Hugging Face's names where these exist.

#include <cstdint>
#include <string>

#include "nanotron/deck/keys/moe.hpp"

namespace nanotron::deck {

enum class Normalization { rms_norm, layer_norm };
enum class NormPlacement { pre, post, sandwich };
enum class NormWeight { plain, one_plus, none };
enum class ParallelResidual { none, two_norms, one_norm };
enum class QkNormOver { head, projection };
enum class PositionEmbedding { rope, learned_absolute, alibi, none };
enum class RopeType { standard, linear, dynamic, llama3, yarn, longrope };
enum class HiddenAct { silu, gelu, gelu_new, relu, relu2, xielu, geglu, geglu_tanh, swiglu_clamped };
enum class Parametrization { standard, mup };

struct ModelConfig {
  std::int64_t hidden_size = 512;
  std::int64_t num_hidden_layers = 8;
  std::int64_t num_attention_heads = 8;
  std::int64_t num_key_value_heads = 0;  // resolve(): num_attention_heads
  std::int64_t head_dim = 0;             // resolve(): hidden_size / num_attention_heads
  std::int64_t intermediate_size = 1408;
  std::int64_t vocab_size = 0;  // filled from the token file by the program
  double rms_norm_eps = 1e-5;
  double rope_theta = 10000.0;
  bool tie_word_embeddings = false;
  bool qkv_bias = false;
  bool qk_norm = false;
  Normalization normalization = Normalization::rms_norm;
  double layer_norm_epsilon = 1e-5;  // of layer_norm
  bool norm_bias = true;             // of layer_norm
  NormWeight norm_weight = NormWeight::plain;
  NormPlacement norm_placement = NormPlacement::pre;
  ParallelResidual parallel_residual = ParallelResidual::none;
  QkNormOver qk_norm_over = QkNormOver::head;
  PositionEmbedding position_embedding_type = PositionEmbedding::rope;
  std::int64_t max_position_embeddings = 0;  // of learned_absolute
  RopeType rope_type = RopeType::standard;
  double rope_factor = 1.0;  // from here on: of the scaled types
  std::int64_t original_max_position_embeddings = 0;
  double rope_low_freq_factor = 1.0;  // of llama3
  double rope_high_freq_factor = 4.0;
  double rope_beta_fast = 32.0;  // of yarn
  double rope_beta_slow = 1.0;
  double rope_attention_factor = 0.0;                   // 0: 0.1 log(rope_factor) + 1
  bool rope_truncate = true;                            // of yarn
  std::string rope_short_factor{}, rope_long_factor{};  // of longrope: a number per pair
  double partial_rotary_factor = 1.0;
  bool rope_interleaved = false;
  std::string rope_layers = "all";  // deck::LayerSet, as window_layers
  double rope_local_theta = 0.0;    // of the layers with a window, without scaling; 0: as the others
  std::int64_t sliding_window = 0;  // 0: none
  std::string window_layers = "all";
  bool attention_sinks = false;
  double attn_logit_softcapping = 0.0, final_logit_softcapping = 0.0;  // 0: none
  double embedding_multiplier = 1.0, residual_multiplier = 1.0, logits_scaling = 1.0;
  double attention_multiplier = 0.0;  // 0: 1 / sqrt(head_dim)
  bool embedding_norm = false;
  std::int64_t q_lora_rank = 0, kv_lora_rank = 0;  // of latent attention; kv_lora_rank = 0: none
  std::int64_t qk_nope_head_dim = 0, qk_rope_head_dim = 0, v_head_dim = 0;
  bool o_proj_bias = false;
  HiddenAct hidden_act = HiddenAct::silu;
  double swiglu_limit = 7.0, swiglu_alpha = 1.702;  // of swiglu_clamped
  bool mlp_bias = false;
  double initializer_range = 0.02;
  double hidden_dropout = 0.0, attention_dropout = 0.0;
  bool lm_head_bias = false;
  std::int64_t num_nextn_predict_layers = 0;  // heads that predict later tokens
  Parametrization parametrization = Parametrization::standard;
  std::int64_t base_hidden_size = 0;  // of mup
  MoeConfig moe{};

  double norm_eps() const { return normalization == Normalization::rms_norm ? rms_norm_eps : layer_norm_epsilon; }
  /// Whether the dense feed-forward network has a gate beside the up projection.
  bool is_gated() const {
    return hidden_act == HiddenAct::silu || hidden_act == HiddenAct::geglu || hidden_act == HiddenAct::geglu_tanh ||
           hidden_act == HiddenAct::swiglu_clamped;
  }
  bool has_rotary() const { return position_embedding_type == PositionEmbedding::rope; }
  bool has_learned_positions() const { return position_embedding_type == PositionEmbedding::learned_absolute; }
};

/// The feed-forward block of a layer: one network, or several to which a router sends each token.
struct FeedForwardSizes {
  struct Width {
    std::int64_t size = 0;  // 0: no such network
    const char* key = "";   // of the deck
  };
  std::int64_t networks = 1, networks_per_token = 1;
  Width width{};                    // of each
  Width shared_width{};             // of one more, which processes all tokens
  std::int64_t routed_outputs = 0;  // of hidden_size inputs: a probability of each network, a weight of the shared one

  bool is_routed() const { return routed_outputs > 0; }
};
FeedForwardSizes feed_forward_sizes(const ModelConfig& model);

/// Whether the block drops tokens, depending on the others of their sequence; and the model that drops none.
bool drops_tokens(const ModelConfig& model);
ModelConfig dropless(ModelConfig model);
/// The model with buffers for the most uneven routing.
ModelConfig with_largest_buffers(ModelConfig model);

}  // namespace nanotron::deck
