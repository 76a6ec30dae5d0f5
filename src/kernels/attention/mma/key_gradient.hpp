#pragma once

#include "kernels/attention/mma/backward.hpp"

namespace nanotron::kernels::mma {

/// Of a block of keys of one key head, over its query heads here, in order.
template <int width>
struct KeyGradient {
  static constexpr int threads = 128, row_tiles = 1;
  static constexpr index_t keys = threads / warp_size * 16, queries = 64, step = 32;  // of queries at a time
  using Tile = SharedTile<64, width>;
  /// Of the queries of a tile: the keys they see, lse and D.
  struct Columns {
    int begin[queries], end[queries];
    float lse[queries], dot[queries];
  };
  static constexpr std::size_t shared_bytes = 6 * Tile::bytes + 2 * sizeof(Columns);

  BackwardInputs in;
  MatrixRef<bf16> dk, dv;

  static index_t blocks(const AttentionShape& s) { return (s.key_length + keys - 1) / keys * s.batch * s.key_heads; }

  NANOTRON_FUNCTION void operator()(const Block& block) const {
    const AttentionShape& s = in.heads.s;
    const index_t heads_here = s.batch * s.key_heads, key_head = block.index % heads_here % s.key_heads;
    const index_t sequence = block.index % heads_here / s.key_heads, first_key = block.index / heads_here * keys;
    const index_t count = s.key_length - first_key < keys ? s.key_length - first_key : keys;
    const Steps steps(s, sequence, key_head, first_key, first_key + count);

    const SharedAddress shared(block.shared);
    const auto tile = [&](int i) { return Tile{shared + i * Tile::bytes}; };
    const Tile key_tile = tile(0), value_tile = tile(1);
    const auto columns_of = [&](index_t i) {
      return reinterpret_cast<Columns*>(block.shared + 6 * Tile::bytes) + i % 2;
    };
    const auto load_queries = [&](index_t i) {
      const index_t n = sequence * s.query_heads + steps.head(i), first = steps.tile(i) * queries;
      const index_t rest = s.query_length - first;
      const int at = 2 + 2 * static_cast<int>(i % 2);
      tile(at).template start_load<threads>(in.heads.query(in.q, n, first), in.q.leading, rest, s.head_dim);
      tile(at + 1).template start_load<threads>(in.heads.query(in.dout, n, first), in.dout.leading, rest, s.head_dim);
      store_columns(*columns_of(i), n, first);
      reconverge();
    };
    const index_t row = sequence * s.key_row_stride() + first_key, column = key_head * s.head_dim;
    key_tile.template start_load<threads>(&in.k(row, column), in.k.leading, count, s.head_dim);
    value_tile.template start_load<threads>(&in.v(row, column), in.v.leading, count, s.head_dim);
    if (steps.count > 0) load_queries(0);

    SumTile<width, row_tiles, threads> of_keys, of_values;
    of_keys.clear();
    of_values.clear();
    for (index_t i = 0; i < steps.count; ++i) {
      wait_for_copies();
      block.barrier();  // these queries are there; nobody needs those before
      if (i + 1 < steps.count) load_queries(i + 1);
      const int at = 2 + 2 * static_cast<int>(i % 2);
      const Tile query_tile = tile(at), dout_tile = tile(at + 1);
      const index_t first_query = steps.tile(i) * queries;
      const index_t last_query = (first_query + queries < s.query_length ? first_query + queries : s.query_length) - 1;
      const bool is_whole = KeyTiles(s, sequence, first_query, last_query, keys).is_whole(first_key, keys);
      NANOTRON_UNROLL
      for (int part = 0; part < queries; part += step) {
        SumTile<step, row_tiles, threads> p, ds;
        p.clear();
        ds.clear();
        p.add_product(key_tile, query_tile, part);
        ds.add_product(value_tile, dout_tile, part);
        const Columns& columns = *columns_of(i);
        if (!is_whole) mask(p, columns, part, static_cast<int>(first_key));
        const float factor = in.scale * log2_of_e;
        p.for_each([&](int, int, int c, float& x) { x = exponential_of_2(factor * x - columns.lse[part + c]); });
        ds.for_each_with(p, [&](int, int, int c, float& x, float of_p) { x = of_p * (x - columns.dot[part + c]); });
        of_values.add_product(p, dout_tile, part);
        of_keys.add_product(ds, query_tile, part);
      }
    }
    wait_for_copies();
    of_keys.for_each([&](int, int, int, float& x) { x *= in.scale; });
    store_rounded(of_keys, &dk(row, column), dk.leading, count, s.head_dim);
    store_rounded(of_values, &dv(row, column), dv.leading, count, s.head_dim);
  }

 private:
  // Query heads of the key head times tiles of queries that meet the keys [first, end).
  struct Steps {
    index_t first_head, first_tile, tiles, count;

    NANOTRON_FUNCTION Steps(const AttentionShape& s, index_t sequence, index_t key_head, index_t first, index_t end) {
      const index_t of_group = (s.first_key_head + key_head) * s.group - s.first_query_head;
      first_head = of_group < 0 ? 0 : of_group;
      const index_t last_head = of_group + s.group < s.query_heads ? of_group + s.group : s.query_heads;
      const index_t all = (s.query_length + queries - 1) / queries;
      first_tile = first_that(0, all, [&](index_t at) {
        const index_t last = (at + 1) * queries < s.query_length ? (at + 1) * queries : s.query_length;
        return s.keys_of(sequence, last - 1).end > first;
      });
      const index_t end_tile =
          first_that(first_tile, all, [&](index_t at) { return s.keys_of(sequence, at * queries).begin >= end; });
      tiles = end_tile - first_tile;
      count = last_head > first_head ? (last_head - first_head) * tiles : 0;
    }
    NANOTRON_FUNCTION index_t head(index_t i) const { return first_head + i / tiles; }
    NANOTRON_FUNCTION index_t tile(index_t i) const { return first_tile + i % tiles; }

    // In [begin, end), where `is` is false first, then true.
    template <class F>
    NANOTRON_FUNCTION static index_t first_that(index_t begin, index_t end, const F& is) {
      while (begin < end) {
        const index_t middle = (begin + end) / 2;
        if (is(middle)) {
          end = middle;
        } else {
          begin = middle + 1;
        }
      }
      return begin;
    }
  };

  NANOTRON_FUNCTION void store_columns(Columns& columns, index_t n, index_t first) const {
    const AttentionShape& s = in.heads.s;
    for (int kept = 0; kept < kept_threads<threads>(); ++kept) {
      const int i = thread_of(kept);
      if (i >= queries) continue;
      const index_t query = first + i;
      const bool there = query < s.query_length;
      const Range seen = there ? s.keys_of(in.heads.sequence(n), query) : Range{0, 0};
      columns.begin[i] = static_cast<int>(seen.begin);
      columns.end[i] = static_cast<int>(seen.end);
      columns.lse[i] = there ? in.lse_of_2(n, query) : 0.0f;
      columns.dot[i] = there ? in.dot[n * s.query_length + query] : 0.0f;
    }
  }

  NANOTRON_FUNCTION static void mask(SumTile<step, row_tiles, threads>& scores, const Columns& columns, int part,
                                     int first_key) {
    scores.for_each([&](int kept, int r, int c, float& x) {
      const int key = first_key + row_of<row_tiles>(thread_of(kept), r);
      if (key < columns.begin[part + c] || key >= columns.end[part + c]) x = no_score;
    });
  }
};

}  // namespace nanotron::kernels::mma
