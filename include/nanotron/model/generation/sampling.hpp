#pragma once

// Samples the next token from logits, on the host. Pure functions: ranks with the same logits draw the same
// token.

#include <cstdint>
#include <span>
#include <vector>

#include "nanotron/base/types.hpp"

namespace nanotron::model {

/// Temperature, then top-k, then top-p, each applied to what the one before keeps.
struct Sampling {
  double temperature = 1.0;  // logits are divided by it; 0: greedy, the likeliest token
  index_t top_k = 0;         // keep the k likeliest tokens; 0: all
  double top_p = 1.0;        // keep the smallest set of likeliest tokens with this total probability
  std::uint64_t seed = 0;    // (nucleus sampling: Holtzman et al. 2020)
};

struct Candidate {
  std::int32_t token;
  double probability;
};

/// Tokens that may be drawn, in the order of ids; their probabilities add up to 1. Of equal logits the
/// lower id counts as likelier. Error(numerics_error) when a logit is NaN or the largest is not finite.
std::vector<Candidate> candidates(std::span<const double> logits, const Sampling& sampling);

/// The random number depends only on sampling.seed, sample and the token's position in its sequence.
std::int32_t draw_token(std::span<const double> logits, const Sampling& sampling, std::uint32_t sample,
                        std::uint64_t position);

}  // namespace nanotron::model
