#include "nanotron/tensor/sequence_layout.hpp"

#include <algorithm>

#include "nanotron/base/error.hpp"
#include "nanotron/deck/config.hpp"
#include "nanotron/tensor/sum_order.hpp"

namespace nanotron {
namespace {

SequenceShard zigzag(index_t length, int ranks, int rank) {
  const Range early = shard_range(length, 2 * ranks, rank);
  const Range late = shard_range(length, 2 * ranks, 2 * ranks - 1 - rank);
  if (early.end == late.begin) return {{early.begin, late.end}, {late.end, late.end}};
  return {early, late};
}

}  // namespace

ContextDegrees context_degrees(const deck::Config& config) {
  const deck::ParallelConfig& p = config.parallel;
  const auto cp = static_cast<int>(p.cp), all_to_all = static_cast<int>(deck::all_to_all_ranks(p));
  if (config.precision.reproducible != deck::Reproducible::layout)
    return {.ring = cp / all_to_all, .all_to_all = all_to_all};
  const auto shards = static_cast<int>(config.precision.context_shards);
  return p.cp_mode == deck::CpMode::all_to_all ? ContextDegrees{.all_to_all = cp, .shards = shards}
                                               : ContextDegrees{.gathered = cp, .shards = shards};
}

SequenceLayout::SequenceLayout(const ContextDegrees& d, index_t length) : length_(length) {
  NANOTRON_REQUIRE(d.ranks() >= 1 && length >= d.ranks(), "{} tokens over {} ranks", length, d.ranks());
  const int neighbours = d.all_to_all * d.gathered, shards = d.ring == 1 && d.shards > 0 ? d.shards : neighbours;
  NANOTRON_REQUIRE(shards % neighbours == 0, "{} shards of a sequence over {} ranks", shards, neighbours);
  const auto share = [&](const Range& chunk, int rank) {
    const Range part = shard_range(chunk.size(), shards, neighbours, rank);
    return Range{chunk.begin + part.begin, chunk.begin + part.end};
  };
  for (int r = 0; r < d.ranks(); ++r) {
    const SequenceShard part =
        d.ring > 1 ? zigzag(length, d.ring, r / neighbours) : SequenceShard{{0, length}, {length, length}};
    shards_.push_back({share(part.first, r % neighbours), share(part.second, r % neighbours)});
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
