#include "nanotron/nn/attention/ring_reach.hpp"

#include <algorithm>

namespace nanotron::nn {

RingReach::RingReach(const SequenceLayout& layout)
    : layout_(layout),
      earliest_(static_cast<std::size_t>(2 * layout.ranks()), 0),
      hops_(static_cast<std::size_t>(layout.ranks()), layout.ranks() - 1) {}

// Documents are stretches of positions: of a piece, the first position has the document that begins first.
void RingReach::find(std::span<const std::int32_t> starts) {
  const auto length = static_cast<std::size_t>(layout_.length());
  for (int part = 0; part < layout_.ranks(); ++part) {
    for (int piece = 0; piece < 2; ++piece) {
      const Range positions = layout_[part].pieces()[static_cast<std::size_t>(piece)].positions;
      index_t first = positions.begin;
      for (std::size_t s = 0; positions.size() > 0 && s < starts.size(); s += length)
        first = std::min<index_t>(first, starts[s + static_cast<std::size_t>(positions.begin)]);
      earliest_[static_cast<std::size_t>(2 * part + piece)] = first;
    }
  }
  find_hops();
}

void RingReach::find_hops() {
  std::ranges::fill(hops_, 0);
  const int ranks = layout_.ranks();
  for (int part = 0; part < ranks; ++part) {
    for (int piece = 0; piece < 2; ++piece) {
      const Range query = layout_[part].pieces()[static_cast<std::size_t>(piece)].positions;
      for (int other = 0; other < ranks; ++other) {
        for (const auto& [keys, token] : layout_[other].pieces()) {
          if (query.size() == 0 || keys.size() == 0 || keys.begin >= query.end) continue;
          int& hops = hops_[static_cast<std::size_t>(other)];
          if (meets(part, piece, keys.end)) hops = std::max(hops, (part - other + ranks) % ranks);
        }
      }
    }
  }
}

}  // namespace nanotron::nn
