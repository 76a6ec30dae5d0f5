#include "nanotron/model/parameters/layer_layout.hpp"

#include "nanotron/deck/config.hpp"
#include "nanotron/nn/dropout/dropout.hpp"

namespace nanotron::model {

std::vector<std::string> LayerLayout::norms() const {
  std::vector<std::string> names;
  for (const std::string& name : {attention.input, attention.output, mlp.input, mlp.output}) {
    if (!name.empty()) names.push_back(name);
  }
  return names;
}

// Hugging Face's names. post_attention_layernorm is what Llama calls the norm before the MLP.
LayerLayout layer_layout(const deck::ModelConfig& model) {
  const std::string input = "input_layernorm/", attention = "post_attention_layernorm/";
  const std::string before_mlp = "pre_feedforward_layernorm/", after_mlp = "post_feedforward_layernorm/";
  switch (model.parallel_residual) {
    case deck::ParallelResidual::two_norms:
      return {.attention = {.input = input}, .mlp = {.input = attention}, .is_parallel = true};
    case deck::ParallelResidual::one_norm:
      return {.attention = {.input = input}, .is_parallel = true};
    default:
      break;
  }
  switch (model.norm_placement) {
    case deck::NormPlacement::post:
      return {.attention = {.output = attention}, .mlp = {.output = after_mlp}};
    case deck::NormPlacement::sandwich:
      return {.attention = {input, attention}, .mlp = {before_mlp, after_mlp}};
    default:
      return {.attention = {.input = input},
              .mlp = {.input = attention},
              .multiplier = model.residual_multiplier,
              .masks_outputs = nn::masks_outputs(model)};
  }
}

void check_layer_layout(const deck::Config& c, deck::Findings& f) {
  if (c.model.parallel_residual != deck::ParallelResidual::none && c.model.norm_placement != deck::NormPlacement::pre &&
      f.is_valid({"model.parallel_residual", "model.norm_placement"})) {
    f.error({"model.norm_placement", "model.parallel_residual"},
            "parallel_residual needs the norms before attention and feed-forward network", "norm_placement = 'pre'",
            "or parallel_residual = 'none'");
  }
  const auto check_factor = [&](const std::string& key, bool has_factor, const std::string& without) {
    const std::string name = "model." + key;
    if (!has_factor || layer_layout(c.model).takes_factors() ||
        !f.is_valid({name, "model.norm_placement", "model.parallel_residual"})) {
      return;
    }
    f.error({name, "model.norm_placement", "model.parallel_residual"},
            key + " is for blocks one after the other with norms before them",
            "norm_placement = 'pre' and parallel_residual = 'none'", "or " + key + without);
  };
  check_factor("residual_multiplier", c.model.residual_multiplier != 1.0, " = 1");
  check_factor(nn::output_mask_key, nn::masks_outputs(c.model), " = 0");
}

}  // namespace nanotron::model
