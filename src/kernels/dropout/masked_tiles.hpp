#pragma once

// The mask of attention's probabilities (kernels/dropout/random_mask.hpp) on tiles of a host. (Not inline: the loops of
// models without a mask keep their registers.)

#include "nanotron/base/error.hpp"
#include "nanotron/kernels/attention/attention.hpp"
#include "nanotron/kernels/loop/host_row.hpp"

namespace nanotron::kernels {

/// A tile of one query head: rows of queries and columns of keys, or the reverse, from these of the shape on.
struct MaskedTile {
  index_t sequence, head, first_query, first_key;
  index_t rows, columns;
  bool rows_are_keys = false;
};

/// x <- factor x where the mask keeps it, else 0. at(row, column): where the `step` elements of a row from a multiple
/// of step on are.
template <class E, class F, class At>
void mask_elements(const AttentionShape& s, const MaskedTile& tile, F factor, index_t step, const At& at) {
  constexpr index_t max_queries = 128;
  const index_t queries = tile.rows_are_keys ? tile.columns : tile.rows;
  NANOTRON_REQUIRE(queries <= max_queries, "a tile of {} queries", queries);
  MaskRow of_query[max_queries];
  for (index_t q = 0; q < queries; ++q) {
    of_query[q] = s.mask.row(tile.sequence, s.query_position + tile.first_query + q, s.first_query_head + tile.head);
  }
  const RandomMask mask = s.mask;
  const index_t key = s.key_position + tile.first_key;
  for (index_t r = 0; r < tile.rows; ++r) {
    for (index_t c = 0; c < tile.columns; c += step) {
      E* const x = at(r, c);
      const index_t count = tile.columns - c < step ? tile.columns - c : step;
      const auto set = [=](index_t i, bool is_kept) {
        if constexpr (std::is_same_v<E, bf16>) {
          x[i] = bf16::from_bits(is_kept ? x[i].bits : std::uint16_t{0});
        } else {
          x[i] = is_kept ? factor * x[i] : E(0);
        }
      };
      if (tile.rows_are_keys) {
        const MaskRow* const rows = of_query + c;
        HostRow{}.for_each(count, [=](index_t i) { set(i, mask.keeps(rows[i], key + r)); });
      } else {
        const MaskRow row = of_query[r];
        HostRow{}.for_each(count, [=](index_t i) { set(i, mask.keeps(row, key + c + i)); });
      }
    }
  }
}

/// x (rows of the tile, leading).
template <class M>
[[gnu::noinline]] void mask_tile(const AttentionShape& s, const MaskedTile& tile, M factor, M* x, index_t leading) {
  mask_elements<M>(s, tile, factor, tile.columns, [=](index_t r, index_t) { return x + r * leading; });
}

/// x: packed tiles of `extent` rows and `depth` columns, those of a row of tiles after each other. Elements are zeroed
/// or kept as they are.
[[gnu::noinline]] inline void mask_packed(const AttentionShape& s, const MaskedTile& tile, bf16* x, index_t extent,
                                          index_t depth) {
  const index_t tiles = (tile.columns + depth - 1) / depth;
  mask_elements<bf16>(s, tile, 1, depth, [=](index_t r, index_t c) {
    return x + (r / extent * tiles + c / depth) * extent * depth + r % extent * depth;
  });
}

}  // namespace nanotron::kernels
