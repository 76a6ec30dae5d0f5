#pragma once

#include <limits>

#include "kernels/attention/host/score_tiles.hpp"

namespace nanotron::kernels {

/// Raises s.scores.maxima of a query head to the largest x that the queries of the tile see: `scale` times its
/// products. Several threads may call it for one head.
template <class M>
void raise_maxima(const AttentionShape& s, index_t sequence, index_t head, M scale, const ScoreTile<M>& tile) {
  if (s.scores.maxima.heads == 0) return;
  const index_t queries = tile.rows_are_keys ? tile.columns : tile.rows;
  const index_t keys = tile.rows_are_keys ? tile.rows : tile.columns;
  const index_t by_query = tile.rows_are_keys ? 1 : tile.leading, by_key = tile.rows_are_keys ? tile.leading : 1;
  const M lowest = std::numeric_limits<M>::lowest();
  M top = lowest;
  for (index_t i = 0; i < queries; ++i) {
    const Range seen = s.keys_of(sequence, tile.first_query + i, tile.first_key, keys);
    const M* const x = tile.products + i * by_query + seen.begin * by_key;
    top = HostRow{}.max<M>(seen.size(), top, [=](index_t j) { return x[j * by_key]; });
  }
  if (top > lowest)
    Kokkos::atomic_fetch_max(s.scores.maxima.data + s.first_query_head + head, static_cast<double>(scale * top));
}

}  // namespace nanotron::kernels
