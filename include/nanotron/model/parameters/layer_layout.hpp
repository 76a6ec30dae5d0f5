#pragma once

// Where the norms of a layer are, and how its two blocks join the hidden states, as model%norm_placement and
// model%parallel_residual say:
//
//   pre              x <- x + attention(norm(x))           x <- x + mlp(norm(x))
//   post             x <- x + norm(attention(x))           x <- x + norm(mlp(x))              (OLMo 2)
//   sandwich         x <- x + norm(attention(norm(x)))     x <- x + norm(mlp(norm(x)))        (Gemma 2)
//   two norms        x <- x + attention(norm(x)) + mlp(norm'(x))                              (GPT-NeoX)
//   one norm         x <- x + attention(n) + mlp(n), n = norm(x)                              (Phi 2)
//
// With 'pre' the outputs of blocks may have a factor, model%residual_multiplier (Granite), and a random mask
// (nn/dropout/dropout.hpp).

#include <string>
#include <vector>

#include "nanotron/deck/checks/findings.hpp"
#include "nanotron/deck/keys/model.hpp"

namespace nanotron::model {

/// Names of norms, as their parameters have them after model/layers/; empty: none.
struct BlockNormNames {
  std::string input{}, output{};
};

struct LayerLayout {
  BlockNormNames attention{}, mlp{};
  bool is_parallel = false;  // both blocks read x
  double multiplier = 1.0;   // of the blocks' outputs
  bool masks_outputs = false;

  bool shares_input() const { return is_parallel && mlp.input.empty(); }
  bool has_input_norms() const { return !attention.input.empty(); }
  bool has_output_norms() const { return !attention.output.empty(); }
  /// Whether the outputs of blocks may have a factor or a mask.
  bool takes_factors() const { return !is_parallel && !has_output_norms(); }
  bool multiplies_outputs() const { return multiplier != 1.0 || masks_outputs; }
  std::vector<std::string> norms() const;
};
LayerLayout layer_layout(const deck::ModelConfig& model);

/// Checks norm_placement against parallel_residual, and both against what outputs of blocks are multiplied by.
void check_layer_layout(const deck::Config& config, deck::Findings& findings);

}  // namespace nanotron::model
