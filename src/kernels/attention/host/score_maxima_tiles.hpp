#pragma once

#include <algorithm>
#include <limits>

#include "kernels/attention/host/score_tiles.hpp"

namespace nanotron::kernels {

/// Of a tile with rows of queries.
template <class M>
M largest_by_query(const AttentionShape& s, index_t sequence, const ScoreTile<M>& tile) {
  M top = std::numeric_limits<M>::lowest();
  for (index_t r = 0; r < tile.rows; ++r) {
    const Range seen = s.keys_of(sequence, tile.first_query + r, tile.first_key, tile.columns);
    const M* const x = tile.products + r * tile.leading + seen.begin;
    top = HostRow{}.max<M>(seen.size(), top, [=](index_t j) { return x[j]; });
  }
  return top;
}

/// Of a tile with rows of keys: some queries at a time, side by side.
template <class M>
M largest_by_key(const AttentionShape& s, index_t sequence, const ScoreTile<M>& tile) {
  constexpr index_t width = 64;
  M top[width];
  std::fill(top, top + width, std::numeric_limits<M>::lowest());
  for (index_t first = 0; first < tile.columns; first += width) {
    const index_t queries = std::min(width, tile.columns - first);
    std::int32_t begin[width], end[width];
    for (index_t c = 0; c < queries; ++c) {
      const Range seen = s.keys_of(sequence, tile.first_query + first + c, tile.first_key, tile.rows);
      begin[c] = static_cast<std::int32_t>(seen.begin), end[c] = static_cast<std::int32_t>(seen.end);
    }
    for (std::int32_t r = 0; r < static_cast<std::int32_t>(tile.rows); ++r) {
      const M* const x = tile.products + r * tile.leading + first;
      for (index_t c = 0; c < queries; ++c) {
        top[c] = ((r >= begin[c]) & (r < end[c]) & (x[c] > top[c])) ? x[c] : top[c];
      }
    }
  }
  return *std::max_element(top, top + width);
}

/// Raises s.scores.maxima of a query head to the largest x that the queries of the tile see: `scale` times its
/// products. Several threads may call it for one head.
template <class M>
void raise_maxima(const AttentionShape& s, index_t sequence, index_t head, M scale, const ScoreTile<M>& tile) {
  if (s.scores.maxima.heads == 0) return;
  const M top = tile.rows_are_keys ? largest_by_key(s, sequence, tile) : largest_by_query(s, sequence, tile);
  if (top == std::numeric_limits<M>::lowest()) return;
  Kokkos::atomic_fetch_max(s.scores.maxima.data + s.first_query_head + head, static_cast<double>(scale * top));
}

}  // namespace nanotron::kernels
