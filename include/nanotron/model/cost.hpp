#pragma once

// Floating-point operations of the model, as the field counts them: products only, a multiplication and an
// addition each; backward is twice forward; what recomputation adds is not counted.
//
//   per token   6 N + 6 L q (S + 1)        N: elements of all matrices but the embedding table, of experts only those
//                                          that a token goes to (none being dropped)
//                                          q: query heads x head_dim, S: sequence length
//
// The second term is causal attention, 4 q operations for each of (S + 1) / 2 keys on average; counting the
// masked half too, as Chowdhery et al. 2022 (appendix B) do, would give 12 L q S. With a sliding window of W < S
// tokens a query meets W - W (W - 1) / (2 S) keys on average.

#include "nanotron/deck/config.hpp"

namespace nanotron::model {

double training_flops_per_token(const deck::ModelConfig& model, std::int64_t sequence_length);

/// What the parts of a model cost, in one unit: what a pipeline's cut balances.
struct BlockCosts {
  double embedding = 0.0;
  double layer = 0.0;
  double head = 0.0;
};
/// Operations of one token's training step.
BlockCosts block_flops(const deck::ModelConfig& model, std::int64_t sequence_length);
/// Elements; a tied head counts as what it takes on a stage of its own.
BlockCosts block_parameters(const deck::ModelConfig& model);

}  // namespace nanotron::model
