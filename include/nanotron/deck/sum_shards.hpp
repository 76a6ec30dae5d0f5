#pragma once

// Into how many equal parts sums are cut, each rank adding up neighbouring parts.

#include <cstdint>

namespace nanotron::deck {

struct Config;

/// Of the sums over features and heads, over the tokens of a sequence, and over the sequences of a global batch. With
/// reproducible = 'run' those of the grid, with 'layout' the same on every grid (tensor/sum_order.hpp). stream: of the
/// sums over the tokens of a sequence for the norms, of which tp ranks may see a part each: context x tensor where these
/// are nodes of one tree and as many tokens, else context.
struct SumShards {
  std::int64_t tensor = 1, context = 1, batch = 1, stream = 1;
};

/// No degree of the grid is 0.
SumShards sum_shards(const Config& config);

/// Whether each of `parts` ranks holds a node of the binary tree over `shards` shards: 2^j neighbours.
constexpr bool holds_node(std::int64_t shards, std::int64_t parts) {
  if (parts < 1 || shards % parts != 0) return false;
  const std::int64_t each = shards / parts;
  return parts == 1 || (each & (each - 1)) == 0;
}

}  // namespace nanotron::deck
