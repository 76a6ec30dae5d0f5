#pragma once

// Which positions of a micro-batch have a token. A loader fills each sequence from its first position on; the positions
// after its last token are empty: they have no input, target or expert, no mean counts them, and nothing computed at
// them reaches a position with a token.

#include <cstdint>

#include "nanotron/tensor/sequence_layout.hpp"

namespace nanotron {

/// Of the rows (sequences, positions of a shard) that a rank holds.
struct FilledPositions {
  SequenceShard shard{};                 // of each sequence
  index_t length = 0;                    // of a whole sequence
  const std::int32_t* tokens = nullptr;  // of each whole sequence, on the device; null: every position has one

  NANOTRON_FUNCTION index_t tokens_of(index_t sequence) const {
    return tokens == nullptr ? length : static_cast<index_t>(tokens[sequence]);
  }
  NANOTRON_FUNCTION bool has_token(index_t row) const {
    if (tokens == nullptr) return true;
    const index_t here = shard.length();
    return shard.position_of(row % here) < tokens_of(row / here);
  }
};

}  // namespace nanotron
