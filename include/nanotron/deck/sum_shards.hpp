#pragma once

// Number of equal partial sums. Each rank adds up neighbouring ones.

#include <cstdint>

namespace nanotron::deck {

struct Config;

/// Partial sums over features and heads (tensor), over the tokens of a sequence (context) and over the sequences of a
/// global batch (batch). With reproducible = 'run' these are the degrees of the grid, with 'layout' they are the same
/// on every grid (tensor/sum_order.hpp). norm: partial sums over the tokens of a sequence for the norms, where each
/// tp rank may see only a part of the tokens: context x tensor if these are nodes of one tree with as many tokens, else
/// context.
struct SumShards {
  std::int64_t tensor = 1, context = 1, batch = 1, norm = 1;
};

/// No degree of the grid is 0.
SumShards sum_shards(const Config& config);

/// Whether each of `parts` ranks has a node of the binary tree over `shards` shards: 2^j neighbours.
constexpr bool holds_node(std::int64_t shards, std::int64_t parts) {
  if (parts < 1 || shards % parts != 0) return false;
  const std::int64_t each = shards / parts;
  return parts == 1 || (each & (each - 1)) == 0;
}

}  // namespace nanotron::deck
