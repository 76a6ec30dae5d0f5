#pragma once

// The mask of attention's probabilities (kernels/dropout/random_mask.hpp) on the scores of a block of threads
// (kernels/mma). `masked` = false: nothing is stored or computed.

#include "kernels/mma/tiles.hpp"
#include "nanotron/kernels/attention/attention.hpp"

namespace nanotron::kernels::mma {

/// Of `count` queries: what their elements have in common.
template <bool masked, int count>
struct QueryMasks {
  MaskRow row[count];

  NANOTRON_FUNCTION void set(int i, const AttentionShape& s, index_t sequence, index_t head, index_t query) {
    row[i] = s.mask.row(sequence, s.query_position + query, s.first_query_head + head);
  }
  /// key: of the shape.
  NANOTRON_FUNCTION bool keeps(int i, const AttentionShape& s, index_t key) const {
    return s.mask.keeps(row[i], s.key_position + key);
  }
};
template <int count>
struct QueryMasks<false, count> {
  NANOTRON_FUNCTION void set(int, const AttentionShape&, index_t, index_t, index_t) {}
};

/// Of the rows of each thread, which are queries from first_query on.
template <bool masked, int row_tiles, int threads>
struct RowMasks {
  static constexpr int rows = 2 * row_tiles;
  PerThread<QueryMasks<masked, rows>, threads> of;

  NANOTRON_FUNCTION RowMasks(const AttentionShape& s, index_t sequence, index_t head, index_t first_query) {
    if constexpr (masked) {
      for (int kept = 0; kept < kept_threads<threads>(); ++kept) {
        NANOTRON_UNROLL
        for (int r = 0; r < rows; ++r) {
          of.of[kept].set(r, s, sequence, head, first_query + row_of<row_tiles>(thread_of(kept), r));
        }
      }
    }
  }
  /// x <- factor x where the mask keeps it, else 0; its first column is this key.
  template <class Tile>
  NANOTRON_FUNCTION void apply(const AttentionShape& s, Tile& tile, index_t first_key, float factor) const {
    tile.for_each([&](int kept, int r, int column, float& x) {
      x = of.of[kept].keeps(r, s, first_key + column) ? factor * x : 0.0f;
    });
  }
};

/// The same of a tile whose rows are keys from first_key on, and whose columns are queries from number `part` of
/// `columns` on.
template <int row_tiles, class Tile, class Columns>
NANOTRON_FUNCTION void mask_columns(const AttentionShape& s, const Columns& columns, Tile& tile, int part,
                                    index_t first_key, float factor) {
  tile.for_each([&](int kept, int r, int column, float& x) {
    const index_t key = first_key + row_of<row_tiles>(thread_of(kept), r);
    x = columns.keeps(part + column, s, key) ? factor * x : 0.0f;
  });
}

NANOTRON_FUNCTION inline float mask_factor(const AttentionShape& s) { return static_cast<float>(s.mask.factor()); }

}  // namespace nanotron::kernels::mma
