// The keys of &model.
#include "nanotron/deck/keys/model.hpp"

#include "rows.hpp"

#define GROUP_NAME "model"
#define GROUP(c) (c).model

namespace nanotron::deck {

// clang-format off
std::vector<Parameter> model_rows() {
  return {
    KEY(hidden_size).needed().at_least(1).at_most(1e8).says("Width of the hidden states."),
    KEY(num_hidden_layers).needed().at_least(1).at_most(100000).says("Number of decoder layers."),
    KEY(num_attention_heads).needed().at_least(1).at_most(1e6).says("Number of query heads."),
    KEY(num_key_value_heads).at_least(0).at_most(1e6).nonzero().says(
        "Number of key and value heads, a divisor of num_attention_heads; 0: as many as query heads."),
    KEY(head_dim).at_least(0).at_most(256).nonzero().says(
        "Width of one head; with RoPE an even number; 0: hidden_size / num_attention_heads."),
    KEY(intermediate_size).needed().at_least(1).at_most(1e8).of_dense().says(
        "Width of the MLP; with experts, the default of moe_intermediate_size."),
    KEY(vocab_size).at_least(0).at_most(1e8).in("tokens").nonzero().says("Vocabulary size; 0: that of the token file."),
    KEY(rms_norm_eps).above(0).says("Added to the mean square inside RMSNorm."),
    KEY(rope_theta).above(0).says("RoPE base (theta)."),
    KEY(tie_word_embeddings).says("Whether the output head uses the weights of the token embedding."),
    KEY(qkv_bias).says("Whether query, key and value projections have a bias (Qwen2)."),
    KEY(qk_norm).says("Whether queries and keys pass an RMSNorm per head (Qwen3)."),
    ENUM(qk_norm_over, {"head", QkNormOver::head}, {"projection", QkNormOver::projection}).omitted().says(
        "With qk_norm: what the RMSNorm goes over, each head; or the whole projection, all heads, of queries and of "
        "keys (OLMo 2)."),
    ENUM(normalization,
        {"rms_norm", Normalization::rms_norm}, {"layer_norm", Normalization::layer_norm}).omitted().says(
        "Norm of the hidden states: RMSNorm, or LayerNorm, which subtracts the mean and has biases (GPT-2)."),
    KEY(layer_norm_epsilon).above(0).omitted().says(
        "Added to the variance inside LayerNorm (normalization = 'layer_norm')."),
    KEY(norm_bias).omitted().says("Whether LayerNorm has a bias (normalization = 'layer_norm')."),
    ENUM(norm_weight,
        {"plain", NormWeight::plain}, {"one_plus", NormWeight::one_plus}, {"none", NormWeight::none}).omitted().says(
        "What a norm multiplies by: its weight ('plain'); 1 + its weight, which begins at 0 ('one_plus', Gemma), also "
        "in norms of queries and keys; or nothing, it then has neither weight nor bias ('none', OLMo 1)."),
    ENUM(norm_placement,
        {"pre", NormPlacement::pre}, {"post", NormPlacement::post},
        {"sandwich", NormPlacement::sandwich}).omitted().says(
        "Where the norms of attention and feed-forward network are: before them ('pre'), after them, before the sum "
        "with the hidden states ('post', OLMo 2), or both ('sandwich', Gemma 2)."),
    ENUM(parallel_residual,
        {"none", ParallelResidual::none}, {"two_norms", ParallelResidual::two_norms},
        {"one_norm", ParallelResidual::one_norm}).omitted().says(
        "Whether attention and feed-forward network read the same hidden states, instead of one after the other: with "
        "a norm each ('two_norms', GPT-NeoX), or with the same one ('one_norm', Phi 2, Falcon)."),
    KEY(residual_multiplier).above(0).omitted().says(
        "Factor on the outputs of attention and feed-forward network before they are added to the hidden states "
        "(Granite)."),
    ENUM(position_embedding_type,
        {"rope", PositionEmbedding::rope}, {"learned_absolute", PositionEmbedding::learned_absolute},
        {"alibi", PositionEmbedding::alibi}, {"none", PositionEmbedding::none}).omitted().says(
        "Position embedding: rotary, on queries and keys; a learned vector per position, added to the token embedding "
        "(GPT-2); ALiBi, a bias of attention scores that falls linearly with the distance (BLOOM, MPT); or none."),
    KEY(max_position_embeddings).at_least(0).at_most(1e8).in("tokens").omitted().says(
        "With 'learned_absolute': number of learned positions, at least sequence_length."),
    ENUM(rope_type,
        {"default", RopeType::standard}, {"linear", RopeType::linear}, {"dynamic", RopeType::dynamic},
        {"llama3", RopeType::llama3}, {"yarn", RopeType::yarn}, {"longrope", RopeType::longrope}).omitted().says(
        "RoPE scaling: none; 'linear', of all frequencies; 'dynamic' (NTK: a larger base, for sequences longer than "
        "original_max_position_embeddings); 'llama3' (Llama 3.1: low frequencies); 'yarn'; or 'longrope', a factor for "
        "each pair (Phi-3)."),
    KEY(rope_factor).at_least(1).omitted().says(
        "With scaled types: factor by which long wavelengths are scaled (factor of rope_scaling). With 'longrope': "
        "max_position_embeddings / original_max_position_embeddings of its config.json."),
    KEY(original_max_position_embeddings).at_least(0).at_most(1e8).in("tokens").omitted().says(
        "With scaled types but 'linear': context length of pre-training, before the scaling ('dynamic': "
        "max_position_embeddings of its config.json)."),
    KEY(rope_low_freq_factor).above(0).omitted().says(
        "With 'llama3': frequencies with fewer periods than this in the original length are divided by rope_factor "
        "(low_freq_factor)."),
    KEY(rope_high_freq_factor).above(0).omitted().says(
        "With 'llama3': frequencies with more periods than this in the original length are unchanged; between the two, "
        "interpolated (high_freq_factor)."),
    KEY(rope_beta_fast).above(0).omitted().says(
        "With 'yarn': dimensions with more rotations than this over the original length are unchanged (beta_fast)."),
    KEY(rope_beta_slow).above(0).omitted().says(
        "With 'yarn': dimensions with fewer rotations than this are divided by rope_factor (beta_slow)."),
    KEY(rope_attention_factor).at_least(0).omitted().says(
        "With 'yarn' and 'longrope': factor on the rotated queries and keys (attention_factor); 0: 0.1 "
        "log(rope_factor) + 1, or sqrt(1 + log(rope_factor) / log(original_max_position_embeddings))."),
    KEY(rope_truncate).omitted().says(
        "With 'yarn': whether the pairs between which frequencies are interpolated are rounded to whole ones; .false. "
        "in GPT-OSS (truncate)."),
    KEY(rope_short_factor).omitted().says(
        "With 'longrope': by what the frequency of each pair is divided in sequences up to "
        "original_max_position_embeddings, numbers between blanks (short_factor)."),
    KEY(rope_long_factor).omitted().says(
        "The same for longer sequences (long_factor)."),
    KEY(partial_rotary_factor).above(0).at_most(1).omitted().says(
        "Part of each head that RoPE rotates: its first elements (GPT-NeoX: 0.25)."),
    KEY(rope_interleaved).omitted().says(
        "Whether RoPE rotates neighbouring elements 2i and 2i + 1 of a head (GLM-4), not i and i + head_dim / 2."),
    KEY(sliding_window).at_least(0).at_most(1e9).in("tokens").omitted().says(
        "Tokens that a token attends to, itself and those right before it (Mistral); 0: no window (full causal "
        "attention)."),
    KEY(window_layers).omitted().says(
        "Layers with the sliding window: 'all', 'none', a:b (of each a + b layers the first a; Gemma 3: '5:1'), layers "
        "counted from 0 ('0-2 5'), or '!' and one of these: all others."),
    KEY(rope_layers).omitted().says(
        "Layers that rotate queries and keys, as window_layers names them (SmolLM3: '3:1'); the others have no "
        "position embedding."),
    KEY(rope_local_theta).at_least(0).omitted().says(
        "RoPE base of the layers with a sliding window, without the scaling of rope_type (Gemma 3); 0: as the other "
        "layers."),
    KEY(attention_multiplier).at_least(0).omitted().says(
        "Factor of the products of queries and keys (Granite; Gemma 2 and 3: query_pre_attn_scalar ** -0.5); 0: 1 / "
        "sqrt(head_dim)."),
    KEY(attn_logit_softcapping).at_least(0).omitted().says(
        "Soft cap c of attention scores: c tanh(score / c) (Gemma 2: 50); 0: none."),
    KEY(attention_sinks).omitted().says(
        "Whether each query head has a learnt logit in the denominator of attention's softmax (GPT-OSS)."),
    KEY(kv_lora_rank).at_least(0).at_most(1e6).omitted().says(
        "Multi-head latent attention (MLA, DeepSeek-V2): width of the compressed keys and values; 0: none, keys and "
        "values are projected from the hidden states."),
    KEY(q_lora_rank).at_least(0).at_most(1e6).omitted().says(
        "With MLA: width of the compressed queries; 0: queries are projected from the hidden states."),
    KEY(qk_nope_head_dim).at_least(0).at_most(256).omitted().says(
        "With MLA: elements of a query or key head without positions."),
    KEY(qk_rope_head_dim).at_least(0).at_most(256).omitted().says(
        "With MLA: elements of a query or key head after them, which RoPE rotates; those of the keys are the same in "
        "all heads."),
    KEY(v_head_dim).at_least(0).at_most(256).omitted().says("With MLA: width of a value head."),
    KEY(embedding_multiplier).above(0).omitted().says(
        "Factor on the token embedding (Granite; Gemma: sqrt(hidden_size))."),
    KEY(embedding_norm).omitted().says("Whether a norm follows the embedding, before the first layer (BLOOM)."),
    KEY(logits_scaling).above(0).omitted().says("Divisor of the output logits (Granite)."),
    KEY(final_logit_softcapping).at_least(0).omitted().says(
        "Soft cap c of the output logits, which become c tanh(l / c) (Gemma 2); 0: none."),
    KEY(lm_head_bias).omitted().says(
        "Whether the output head has a bias, which is added to the logits after logits_scaling, before the soft cap "
        "(Phi 2)."),
    KEY(o_proj_bias).omitted().says("Whether attention's output projection has a bias (GPT-2)."),
    ENUM(hidden_act,
        {"silu", HiddenAct::silu}, {"gelu", HiddenAct::gelu}, {"gelu_new", HiddenAct::gelu_new},
        {"relu", HiddenAct::relu}, {"relu2", HiddenAct::relu2}, {"xielu", HiddenAct::xielu},
        {"geglu", HiddenAct::geglu}, {"geglu_tanh", HiddenAct::geglu_tanh},
        {"swiglu_clamped", HiddenAct::swiglu_clamped}).omitted().says(
        "Activation of the feed-forward network. With a gate: SwiGLU ('silu'), GELU by the error function ('geglu') or "
        "its tanh approximation ('geglu_tanh', Gemma), or clamped SwiGLU ('swiglu_clamped', GPT-OSS). Without: GELU by "
        "the error function ('gelu') or its tanh approximation ('gelu_new', GPT-2), ReLU ('relu', OPT), its square "
        "('relu2', Nemotron), or xIELU, which has two learnt scalars a layer ('xielu', Apertus)."),
    KEY(swiglu_limit).above(0).omitted().says(
        "With 'swiglu_clamped': upper bound of the gate, and bound of the absolute value of up."),
    KEY(swiglu_alpha).above(0).omitted().says("With 'swiglu_clamped': factor of the gate inside the sigmoid."),
    KEY(mlp_bias).omitted().says("Whether the projections of the feed-forward network have biases (GPT-2)."),
    KEY(initializer_range).above(0).may_change().says(
        "Standard deviation of the initial weights; of o_proj and down_proj it is divided by sqrt(2 "
        "num_hidden_layers), as in Megatron-LM. With 'mup' that of the base model."),
    KEY(hidden_dropout).at_least(0).below(1).may_change().says(
        "Probability with which training zeroes elements of the embedding's output and of the outputs of attention and "
        "feed-forward network (Megatron-LM); the others are divided by 1 minus it."),
    KEY(attention_dropout).at_least(0).below(1).may_change().says(
        "The same of the probabilities of attention, after the softmax."),
    KEY(num_nextn_predict_layers).at_least(0).at_most(64).omitted().says(
        "Layers after the last one that predict later tokens (multi-token prediction, DeepSeek-V3): the k-th predicts "
        "the k-th token after the next one. Training minimises their losses too; generation does not use them."),
    ENUM(parametrization, {"standard", Parametrization::standard}, {"mup", Parametrization::mup}).may_change().says(
        "How initial standard deviations and learning rates depend on the width: not at all ('standard'), or muP in "
        "its spectral form ('mup'), so that values tuned at base_hidden_size carry over."),
    KEY(base_hidden_size).at_least(0).at_most(1e8).may_change().says(
        "With 'mup': hidden_size of the base model that initializer_range and learning_rate were tuned for. It has the "
        "same proportions and head_dim."),
  };
}
// clang-format on

}  // namespace nanotron::deck

#undef GROUP_NAME
#undef GROUP
