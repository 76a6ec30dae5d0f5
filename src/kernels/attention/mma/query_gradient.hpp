#pragma once

#include "kernels/attention/mma/backward.hpp"

namespace nanotron::kernels::mma {

/// Of a block of queries of one head; D is stored before the other kernel reads it.
template <int width>
struct QueryGradient {
  static constexpr int threads = 128, row_tiles = 1, rows_of_thread = 2;
  static constexpr index_t queries = threads / warp_size * 16, keys = 64;
  using QueryTile = SharedTile<queries, width>;
  using KeyTile = SharedTile<keys, width>;
  static constexpr std::size_t shared_bytes = 2 * QueryTile::bytes + 4 * KeyTile::bytes;
  using Scores = SumTile<keys, row_tiles, threads>;
  struct Row {
    int begin = 0, end = 0;  // the keys it sees
    float lse = 0.0f, dot = 0.0f;
  };
  using Rows = PerThread<Row[rows_of_thread], threads>;

  BackwardInputs in;
  MatrixRef<const bf16> out;
  MatrixRef<bf16> dq;

  static index_t blocks(const AttentionShape& s) { return QueryBlock::blocks(s, queries); }

  NANOTRON_FUNCTION void operator()(const Block& block) const {
    const blocked::Heads& heads = in.heads;
    const AttentionShape& s = heads.s;
    const auto [n, sequence, first_query, count] = QueryBlock(heads, block.index, queries);
    const KeyTiles tiles(s, sequence, first_query, first_query + count - 1, keys);

    const SharedAddress shared(block.shared);
    const QueryTile query_tile{shared}, dout_tile{shared + QueryTile::bytes};
    const auto key_tile = [&](int at, int which) {
      return KeyTile{shared + 2 * QueryTile::bytes + (2 * (at % 2) + which) * KeyTile::bytes};
    };
    const auto load_keys = [&, n = n](int at) {
      const index_t first = at * keys, rest = s.key_length - first;
      key_tile(at, 0).template start_load<threads>(heads.key(in.k, n, first), in.k.leading, rest, s.head_dim);
      key_tile(at, 1).template start_load<threads>(heads.key(in.v, n, first), in.v.leading, rest, s.head_dim);
    };
    query_tile.template start_load<threads>(heads.query(in.q, n, first_query), in.q.leading, count, s.head_dim);
    dout_tile.template start_load<threads>(heads.query(in.dout, n, first_query), in.dout.leading, count, s.head_dim);
    if (tiles.begin < tiles.end) load_keys(tiles.begin);
    const Rows rows = rows_from(n, first_query, count);
    reconverge();

    SumTile<width, row_tiles, threads> gradient;
    gradient.clear();
    for (int at = tiles.begin; at < tiles.end; ++at) {
      wait_for_copies();
      block.barrier();  // this tile is there; nobody needs the one before
      if (at + 1 < tiles.end) load_keys(at + 1);
      Scores scores, dp;
      scores.clear();
      dp.clear();
      scores.add_product(query_tile, key_tile(at, 0), 0);
      dp.add_product(dout_tile, key_tile(at, 1), 0);
      if (!tiles.is_whole(at * keys, keys)) {
        scores.for_each([&](int kept, int r, int column, float& x) {
          const int key = at * static_cast<int>(keys) + column;
          if (key < rows.of[kept][r].begin || key >= rows.of[kept][r].end) x = no_score;
        });
      }
      const float factor = in.scale * log2_of_e;
      scores.for_each_with(dp, [&](int kept, int r, int, float& x, float of_dp) {
        x = exponential_of_2(factor * x - rows.of[kept][r].lse) * (of_dp - rows.of[kept][r].dot);
      });
      gradient.add_product(scores, key_tile(at, 0), 0);
    }
    wait_for_copies();
    gradient.for_each([&](int, int, int, float& x) { x *= in.scale; });
    store_rounded(gradient, heads.query(dq, n, first_query), dq.leading, count, s.head_dim);
  }

 private:
  NANOTRON_FUNCTION Rows rows_from(index_t n, index_t first_query, index_t count) const {
    const AttentionShape& s = in.heads.s;
    Rows rows;
    NANOTRON_UNROLL
    for (int r = 0; r < rows_of_thread; ++r) {
      PerThread<float, threads> dot;
      for (int kept = 0; kept < kept_threads<threads>(); ++kept) {
        const int thread = thread_of(kept);
        const index_t i = row_of<row_tiles>(thread, r);
        dot.of[kept] = i < count ? part_of_dot(n, first_query + i, thread % 4) : 0.0f;
      }
      combine_quads(dot, [](float a, float b) { return a + b; });
      for (int kept = 0; kept < kept_threads<threads>(); ++kept) {
        const int thread = thread_of(kept);
        const index_t i = row_of<row_tiles>(thread, r), query = first_query + i;
        rows.of[kept][r] = {};
        if (i >= count) continue;
        const Range seen = s.keys_of(in.heads.sequence(n), query);
        rows.of[kept][r] = {static_cast<int>(seen.begin), static_cast<int>(seen.end), in.lse_of_2(n, query),
                            dot.of[kept]};
        if (thread % 4 == 0) in.dot[n * s.query_length + query] = dot.of[kept];
      }
    }
    return rows;
  }

  // Over chunks t, t + 4, ... of 8 elements.
  NANOTRON_FUNCTION float part_of_dot(index_t n, index_t query, int t) const {
    const bf16 *const o = in.heads.query(out, n, query), *const d = in.heads.query(in.dout, n, query);
    float sum = 0.0f;
    for (index_t c = 8 * t; c < in.heads.s.head_dim; c += 32) {
      const auto of_out = load(o + c, Width<8>{}), of_dout = load(d + c, Width<8>{});
      NANOTRON_UNROLL
      for (int j = 0; j < 8; ++j) sum += static_cast<float>(of_out[j]) * static_cast<float>(of_dout[j]);
    }
    return sum;
  }
};

}  // namespace nanotron::kernels::mma
