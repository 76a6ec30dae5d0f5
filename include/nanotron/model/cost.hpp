#pragma once

// Model FLOPs, as the field counts them: GEMMs only, multiplication and addition counted as two; backward is twice
// forward; recomputation is not counted.
//
//   per token   6 N + 6 L q (s + 1)        N: elements of all 2-D parameters except embeddings; of experts only
//                                          those that a token goes to (no token dropped)
//                                          L: layers, q: a x head_dim (query heads), s: sequence length
//
// The second term is causal attention: forward takes 4 q FLOPs for each of (s + 1) / 2 keys on average. Chowdhery et
// al. 2022 (appendix B) count the masked half too, which gives 12 L q s. In layers with a sliding window of w < s
// tokens a query has w - w (w - 1) / (2 s) keys on average. Where values have another width than queries and keys, q is
// the mean of both.

#include <vector>

#include "nanotron/deck/checks/findings.hpp"
#include "nanotron/deck/keys/model.hpp"
#include "nanotron/deck/layer_kinds.hpp"

namespace nanotron::model {

double training_flops_per_token(const deck::ModelConfig& model, std::int64_t sequence_length);
/// The same of a run. Gradients of frozen weights are not computed: 4 per element of theirs, 6 per one of adapters.
double training_flops_per_token(const deck::Config& config);

/// The cost of each layer, by its kind.
class LayerCosts {
 public:
  LayerCosts(double each = 0.0) : of_kind_{each} {}  // NOLINT: a number where all layers are alike
  LayerCosts(const deck::LayerKinds& kinds, std::vector<double> of_kind)
      : kinds_{kinds}, of_kind_(std::move(of_kind)) {}

  /// Of the layers [begin, end).
  double sum(std::int64_t begin, std::int64_t end) const;

 private:
  std::vector<deck::LayerKinds> kinds_;  // of one element, or none: all layers are alike
  std::vector<double> of_kind_;
};

/// Costs of the parts of a model in a common unit. The split into pipeline stages balances them.
struct BlockCosts {
  double embedding = 0.0;
  LayerCosts layers{};
  double head = 0.0;
};
/// The costs with those of appended layers in the head, which is on their stage. besides: of each, what it has besides
/// a layer as the last one.
BlockCosts with_appended(BlockCosts costs, const deck::ModelConfig& model, double besides);
/// FLOPs per token of a training step, as training_flops_per_token() counts them.
BlockCosts block_flops(const deck::ModelConfig& model, std::int64_t sequence_length);
BlockCosts block_flops(const deck::Config& config);
/// Elements of 2-D parameters. A tied head and the embedding of appended layers count too, since a stage without the
/// embedding stores its own copy.
BlockCosts block_parameters(const deck::ModelConfig& model);

/// Errors beyond 1e15 parameters or activations, where index arithmetic would overflow.
void check_size(const deck::Config& config, deck::Findings& findings);

}  // namespace nanotron::model
