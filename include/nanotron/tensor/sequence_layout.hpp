#pragma once

// Which positions of a sequence each rank of a context-parallel group holds. Every sequence of a micro-batch lies
// alike, uneven lengths too.
//
//   zigzag       2 n chunks of n ranks, rank r holds chunks r and 2n-1-r: as many pairs of query and earlier key
//                on every rank (Brandon et al. 2023, section 3; Llama Team 2024, section 3.3.2)
//   contiguous   n chunks, rank r holds chunk r

#include <array>
#include <vector>

#include "nanotron/deck/config.hpp"
#include "nanotron/tensor/shard.hpp"

namespace nanotron {

/// Two pieces in rising order; either may be empty.
struct SequenceShard {
  Range first{}, second{};

  NANOTRON_FUNCTION index_t length() const {
    return first.end - first.begin + second.end - second.begin;
  }
  /// Of the shard's token i.
  NANOTRON_FUNCTION index_t position_of(index_t i) const {
    const index_t in_first = first.end - first.begin;
    return i < in_first ? first.begin + i : second.begin + i - in_first;
  }
  /// A piece of a shard, and the token of the shard that it begins with.
  struct Piece {
    Range positions;
    index_t token;
  };
  std::array<Piece, 2> pieces() const { return {Piece{first, 0}, Piece{second, first.size()}}; }
};

class SequenceLayout {
 public:
  enum class Cut { zigzag, contiguous };

  /// length >= ranks: then no rank is without a token.
  SequenceLayout(Cut cut, index_t length, int ranks);
  /// What a mode of attention needs.
  SequenceLayout(deck::CpMode mode, index_t length, int ranks);

  index_t length() const { return length_; }
  int ranks() const { return static_cast<int>(shards_.size()); }
  const SequenceShard& operator[](int rank) const { return shards_[static_cast<std::size_t>(rank)]; }
  /// The longest piece of any rank, and the most tokens of one.
  index_t longest_piece() const;
  index_t longest_shard() const;

 private:
  index_t length_;
  std::vector<SequenceShard> shards_;
};

}  // namespace nanotron
