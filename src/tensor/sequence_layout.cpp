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

ContextDegrees context_degrees(const deck::ParallelConfig& p) {
  const auto all_to_all = static_cast<int>(deck::all_to_all_ranks(p));
  return {static_cast<int>(p.cp) / all_to_all, all_to_all};
}

SequenceLayout::SequenceLayout(const ContextDegrees& d, index_t length) : length_(length) {
  NANOTRON_REQUIRE(d.ranks() >= 1 && length >= d.ranks(), "{} tokens over {} ranks", length, d.ranks());
  const auto share = [&](const Range& chunk, int rank) {
    const Range part = shard_range(chunk.size(), d.all_to_all, rank);
    return Range{chunk.begin + part.begin, chunk.begin + part.end};
  };
  for (int r = 0; r < d.ranks(); ++r) {
    const SequenceShard part =
        d.ring > 1 ? zigzag(length, d.ring, r / d.all_to_all) : SequenceShard{{0, length}, {length, length}};
    shards_.push_back({share(part.first, r % d.all_to_all), share(part.second, r % d.all_to_all)});
  }
}

index_t SequenceLayout::shortest_shard() const {
  return std::ranges::min(shards_, {}, &SequenceShard::length).length();
}

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
