#pragma once

// From the logits of a token to the next one. On the host, and a pure function: every rank that has
// the same logits draws the same token.

#include <cstdint>
#include <span>
#include <vector>

#include "nanotron/base/types.hpp"

namespace nanotron::model {

/// temperature, then top-k, then top-p, each on what the one before has left.
struct Sampling {
  double temperature = 1.0;  // logits are divided by it; 0: always the likeliest token
  index_t top_k = 0;         // only so many of the likeliest tokens; 0: all
  double top_p = 1.0;        // only the fewest of the likeliest that together have this probability
  std::uint64_t seed = 0;    // (nucleus sampling: Holtzman et al. 2020)
};

struct Candidate {
  std::int32_t token;
  double probability;
};

/// What may be drawn, in the order of ids, probabilities adding up to 1. Of equal logits the lower
/// id counts as the likelier. Error(numerics_error) when a logit is not a number or none is finite.
std::vector<Candidate> candidates(std::span<const double> logits, const Sampling& sampling);

/// Draws by seed, the number of the sample and the position of the token in its sequence.
std::int32_t draw_token(std::span<const double> logits, const Sampling& sampling,
                        std::uint32_t sample, std::uint64_t position);

}  // namespace nanotron::model
