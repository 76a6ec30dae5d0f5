#include "nanotron/tensor/sequence_layout.hpp"

#include <algorithm>

#include "nanotron/base/error.hpp"

namespace nanotron {
namespace {

SequenceShard zigzag(index_t length, int ranks, int rank) {
  const Range early = shard_range(length, 2 * ranks, rank);
  const Range late = shard_range(length, 2 * ranks, 2 * ranks - 1 - rank);
  if (early.end == late.begin) return {{early.begin, late.end}, {late.end, late.end}};
  return {early, late};
}

}  // namespace

SequenceLayout::SequenceLayout(Cut cut, index_t length, int ranks) : length_(length) {
  NANOTRON_REQUIRE(ranks >= 1 && length >= ranks, "{} tokens over {} ranks", length, ranks);
  for (int r = 0; r < ranks; ++r) {
    const Range whole = shard_range(length, ranks, r);
    shards_.push_back(cut == Cut::zigzag ? zigzag(length, ranks, r) : SequenceShard{whole, {whole.end, whole.end}});
  }
}

SequenceLayout::SequenceLayout(deck::CpMode mode, index_t length, int ranks)
    : SequenceLayout(mode == deck::CpMode::ring ? Cut::zigzag : Cut::contiguous, length, ranks) {}

index_t SequenceLayout::longest_piece() const {
  index_t longest = 0;
  for (const SequenceShard& s : shards_) longest = std::max({longest, s.first.size(), s.second.size()});
  return longest;
}

index_t SequenceLayout::longest_shard() const {
  index_t longest = 0;
  for (const SequenceShard& s : shards_) longest = std::max(longest, s.length());
  return longest;
}

}  // namespace nanotron
