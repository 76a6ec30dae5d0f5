#pragma once

// Which positions of a sequence each of the r a ranks of a context-parallel group holds: r parts of the sequence, each
// of a neighbours. All sequences of a micro-batch are sharded alike; the length need not be a multiple of anything.
//
//   r > 1   zigzag: 2r chunks, part i has chunks i and 2r - 1 - i. Causal work is even, with equally many pairs of
//   query
//           and earlier key per part (Brandon et al. 2023, section 3; Llama Team 2024, section 3.3.2)
//   r = 1   the whole sequence
//
// Each of the a neighbours holds its share of each chunk: consecutive positions. Ranks that gather have consecutive
// positions of the whole sequence. Where the sums over a sequence have fixed shards (tensor/sum_order.hpp) a rank holds
// whole shards.

#include <array>
#include <cstdint>
#include <vector>

#include "nanotron/tensor/shard.hpp"

namespace nanotron::deck {
struct Config;
}

namespace nanotron {

/// Two pieces in ascending order; either may be empty.
struct SequenceShard {
  Range first{}, second{};

  NANOTRON_FUNCTION index_t length() const { return first.end - first.begin + second.end - second.begin; }
  /// Position in the sequence of the shard's token i.
  NANOTRON_FUNCTION index_t position_of(index_t i) const {
    const index_t in_first = first.end - first.begin;
    return i < in_first ? first.begin + i : second.begin + i - in_first;
  }
  /// The positions of a piece, and the index in the shard of its first token.
  struct Piece {
    Range positions;
    index_t token;
  };
  std::array<Piece, 2> pieces() const { return {Piece{first, 0}, Piece{second, first.size()}}; }
};

/// r and a: parts go round a ring; inside of one, an all-to-all exchanges tokens for heads. gathered: ranks each of
/// which receives all keys and values; then r = a = 1.
struct ContextDegrees {
  int ring = 1, all_to_all = 1, gathered = 1;
  int shards = 0;  // of a sequence, where r = 1: ranks hold whole ones; 0: as many as ranks
  int ranks() const { return ring * all_to_all * gathered; }
};
/// Of the deck; cp is not 0.
ContextDegrees context_degrees(const deck::Config& config);

class SequenceLayout {
 public:
  /// length >= ranks: a rank without tokens is possible only where 1 < ring and 1 < all_to_all.
  SequenceLayout(const ContextDegrees& degrees, index_t length);

  index_t length() const { return length_; }
  int ranks() const { return static_cast<int>(shards_.size()); }
  const SequenceShard& operator[](int rank) const { return shards_[static_cast<std::size_t>(rank)]; }
  /// Min over ranks of the tokens of a sequence.
  index_t shortest_shard() const;
  /// Max over ranks of the length of a piece, and of a shard.
  index_t longest_piece() const;
  index_t longest_shard() const;

 private:
  index_t length_;
  std::vector<SequenceShard> shards_;
};

// Which positions of a micro-batch have a token. A loader fills each sequence from its first position on; the positions
// after its last token are empty: they have no input, target or expert, no mean counts them, and nothing computed at
// them reaches a position with a token.

/// The filled positions of the rows (sequences, positions of a shard) that a rank holds.
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

// Which samples of training the sequences of a micro-batch are.

/// Sequences of a rank from its sequence `before` of a global batch on. The batch begins at the sample `first`; shards
/// take `at_once` samples each in turn.
struct SampleNumbers {
  index_t first = -1;  // below 0: unknown, not a batch of training
  std::int32_t at_once = 1, shards = 1, shard = 0, before = 0;

  NANOTRON_FUNCTION bool are_known() const { return first >= 0; }
  /// Global number of the sample of sequence s.
  NANOTRON_FUNCTION index_t of(index_t s) const {
    const index_t j = before + s;
    return first + (j / at_once * shards + shard) * at_once + j % at_once;
  }
  /// From the sequence s on.
  SampleNumbers from(index_t s) const {
    SampleNumbers later = *this;
    later.before += static_cast<std::int32_t>(s);
    return later;
  }
};

}  // namespace nanotron
