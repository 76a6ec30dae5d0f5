#pragma once

// The map of scores (kernels/attention/head_scores.hpp) on tiles of a host.

#include "kernels/attention/head_scores.hpp"
#include "nanotron/kernels/loop/host_row.hpp"

namespace nanotron::kernels {

/// A tile of products in memory: rows of queries and columns of keys, or the reverse.
template <class M>
struct ScoreTile {
  M* products;
  index_t leading, rows, columns;
  index_t first_query, first_key;
  bool rows_are_keys = false;

  index_t query(index_t r, index_t c) const { return first_query + (rows_are_keys ? c : r); }
  index_t key(index_t r, index_t c) const { return first_key + (rows_are_keys ? r : c); }
};

/// products, of which x is `scale` times, <- scores of a query head, on a host. (Not inline: the loops of models
/// without a map keep their registers.)
template <class M>
[[gnu::noinline]] void map_scores(const AttentionShape& s, index_t head, M scale, const ScoreTile<M>& tile) {
  const HeadScores<M> map(s, head, scale);
  for (index_t r = 0; r < tile.rows; ++r) {
    M* const x = tile.products + r * tile.leading;
    HostRow{}.for_each(tile.columns, [=](index_t c) { x[c] = map.score(x[c], tile.query(r, c), tile.key(r, c)); });
  }
}

/// The same, and dp of the same layout as head_scores.hpp says. dot: of each query of the tile.
template <class M>
[[gnu::noinline]] void map_scores_and_gradient(const AttentionShape& s, index_t head, M scale, const ScoreTile<M>& tile,
                                               M* dp, const M* dot) {
  const HeadScores<M> map(s, head, scale);
  for (index_t r = 0; r < tile.rows; ++r) {
    const M* const x = tile.products + r * tile.leading;
    M* const gradient = dp + r * tile.leading;
    HostRow{}.for_each(tile.columns, [=](index_t c) {
      const M of_query = dot[tile.query(r, c) - tile.first_query];
      gradient[c] = (gradient[c] - of_query) * map.rise(x[c]) + of_query;
    });
  }
  map_scores(s, head, scale, tile);
}

}  // namespace nanotron::kernels
