#pragma once

// Which positions of a sequence each of the c ranks of a context-parallel group holds. All sequences of a micro-batch
// are sharded alike; the length need not be a multiple of c.
//
//   zigzag       2c chunks, rank r holds chunks r and 2c - 1 - r: causal work is even, with equally many pairs of query
//                and earlier key per rank (Brandon et al. 2023, section 3; Llama Team 2024, section 3.3.2)
//   contiguous   c chunks, rank r holds chunk r

#include <array>
#include <vector>

#include "nanotron/deck/keys/parallel.hpp"
#include "nanotron/tensor/shard.hpp"

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

class SequenceLayout {
 public:
  enum class Cut { zigzag, contiguous };

  /// length >= ranks, so that every rank has a token.
  SequenceLayout(Cut cut, index_t length, int ranks);
  /// zigzag for ring attention, else contiguous.
  SequenceLayout(deck::CpMode mode, index_t length, int ranks);

  index_t length() const { return length_; }
  int ranks() const { return static_cast<int>(shards_.size()); }
  const SequenceShard& operator[](int rank) const { return shards_[static_cast<std::size_t>(rank)]; }
  /// Max over ranks of the length of a piece, and of a shard.
  index_t longest_piece() const;
  index_t longest_shard() const;

 private:
  index_t length_;
  std::vector<SequenceShard> shards_;
};

}  // namespace nanotron
