#pragma once

// Attention's forward, a block of queries of one head (FlashAttention-2, Dao 2023, algorithm 1):
//
//   S = Q K^T      m <- max(m, rows of S)      P = exp(scale (S - m))      l <- a l + sum P      O <- a O + P V
//
// with a = exp(scale (m_before - m)), tile by tile of keys; at the end O / l and lse = scale m + log l. Where scores
// are more than a multiple of products (`mapped`), S is mapped and the scale above is 1. A random mask (`masked`) is of
// P in P V.

#include <cmath>
#include <limits>

#include "kernels/attention/attention_blocks.hpp"
#include "kernels/attention/head_scores.hpp"
#include "kernels/dropout/masked_fragments.hpp"
#include "kernels/mma/tiles.hpp"

namespace nanotron::kernels::mma {

inline constexpr float log2_of_e = 1.4426950408889634f;
inline constexpr float no_score = -std::numeric_limits<float>::infinity();
inline constexpr float no_keys = std::numeric_limits<float>::lowest();  // lse

/// Tiles of keys [begin, end) that a block of queries meets. Where every query sees a whole tile, no score is masked.
struct KeyTiles {
  int begin, end;              // tiles
  index_t all_begin, all_end;  // keys that every query sees

  /// Queries first ... last of a sequence; keys of a tile: `width`.
  NANOTRON_FUNCTION KeyTiles(const AttentionShape& s, index_t sequence, index_t first, index_t last, index_t width) {
    const Range of_first = s.keys_of(sequence, first), of_last = s.keys_of(sequence, last);
    begin = static_cast<int>(of_first.begin / width);
    end = static_cast<int>((of_last.end + width - 1) / width);
    all_begin = of_last.begin;
    all_end = of_first.end;
  }
  NANOTRON_FUNCTION bool is_whole(index_t first_key, index_t width) const {
    return first_key >= all_begin && first_key + width <= all_end;
  }
};

/// The queries of a block of threads: up to `queries` of one head. The last ones of a sequence, which meet the most
/// keys, are in the first blocks.
struct QueryBlock {
  index_t n, sequence;   // of the head (blocked::Heads)
  index_t first, count;  // queries

  NANOTRON_FUNCTION QueryBlock(const blocked::Heads& heads, index_t block, index_t queries) {
    const AttentionShape& s = heads.s;
    const index_t heads_here = s.batch * s.query_heads;
    n = block % heads_here;
    sequence = heads.sequence(n);
    first = ((s.query_length + queries - 1) / queries - 1 - block / heads_here) * queries;
    count = s.query_length - first < queries ? s.query_length - first : queries;
  }
  static index_t blocks(const AttentionShape& s, index_t queries) {
    return (s.query_length + queries - 1) / queries * s.batch * s.query_heads;
  }
};

inline float scale_of(const AttentionShape& s) {
  return static_cast<float>(s.scores.scale_or(1.0 / std::sqrt(static_cast<double>(s.head_dim))));
}

/// Products of a block's tile -> scores. The first row and column are of this query and key; of this key and query
/// where rows are keys.
template <int row_tiles, bool rows_are_keys = false, class Tile>
NANOTRON_FUNCTION void map_scores(const HeadScores<float>& map, Tile& tile, index_t first_query, index_t first_key) {
  tile.for_each([&](int kept, int r, int column, float& x) {
    const index_t row = row_of<row_tiles>(thread_of(kept), r);
    x = map.score(x, first_query + (rows_are_keys ? column : row), first_key + (rows_are_keys ? row : column));
  });
}

/// dp as head_scores.hpp says, before map_scores. dot(kept thread, row, column): of the query.
template <class Tile, class Dot>
NANOTRON_FUNCTION void map_gradient(const HeadScores<float>& map, const Tile& products, Tile& dp, const Dot& dot) {
  dp.for_each_with(products, [&](int kept, int r, int column, float& x, float product) {
    const float of_query = dot(kept, r, column);
    x = (x - of_query) * map.rise(product) + of_query;
  });
}

/// head_dim up to `width`, which is 64 or 128.
template <int width, bool mapped, bool masked>
struct Forward {
  static constexpr int threads = 128, row_tiles = 2, rows_of_thread = 2 * row_tiles;
  static constexpr index_t queries = threads / warp_size * 16 * row_tiles, keys = 64;
  using QueryTile = SharedTile<queries, width>;
  using KeyTile = SharedTile<keys, width>;
  static constexpr std::size_t shared_bytes = QueryTile::bytes + 2 * KeyTile::bytes;
  template <class T>
  using OfRows = PerThread<T[rows_of_thread], threads>;
  using Scores = SumTile<keys, row_tiles, threads>;

  blocked::Heads heads;
  MatrixRef<const bf16> q, k, v;
  MatrixRef<bf16> out;
  float* lse;
  float scale;  // of products

  static index_t blocks(const AttentionShape& s) { return QueryBlock::blocks(s, queries); }

  NANOTRON_FUNCTION void operator()(const Block& block) const {
    const AttentionShape& s = heads.s;
    const auto [n, sequence, first_query, count] = QueryBlock(heads, block.index, queries);
    const KeyTiles tiles(s, sequence, first_query, first_query + count - 1, keys);

    const SharedAddress shared(block.shared);
    const QueryTile query_tile{shared};
    const KeyTile key_tile{shared + QueryTile::bytes}, value_tile{shared + QueryTile::bytes + KeyTile::bytes};
    const auto load_keys = [&, n = n](const KeyTile& tile, const MatrixRef<const bf16>& from, int at) {
      const index_t first = at * keys;
      tile.template start_load<threads>(heads.key(from, n, first), from.leading, s.key_length - first, s.head_dim);
    };

    OfRows<float> row_max, row_sum;
    for (int kept = 0; kept < kept_threads<threads>(); ++kept) {
      NANOTRON_UNROLL
      for (int r = 0; r < rows_of_thread; ++r) {
        row_max.of[kept][r] = no_score;
        row_sum.of[kept][r] = 0.0f;
      }
    }
    const RowMasks<masked, row_tiles, threads> masks(s, sequence, heads.head(n), first_query);
    SumTile<width, row_tiles, threads> output;
    output.clear();
    query_tile.template start_load<threads>(heads.query(q, n, first_query), q.leading, count, s.head_dim);
    if (tiles.begin < tiles.end) load_keys(key_tile, k, tiles.begin);
    for (int at = tiles.begin; at < tiles.end; ++at) {
      wait_for_copies();
      block.barrier();  // queries and keys are there; nobody needs the last tile's values
      load_keys(value_tile, v, at);
      Scores scores;
      scores.clear();
      scores.add_product(query_tile, key_tile, 0);
      if constexpr (mapped) {
        map_scores<row_tiles>(HeadScores<float>(s, heads.head(n), scale), scores, first_query, at * keys);
      }
      if (!tiles.is_whole(at * keys, keys)) mask(scores, sequence, first_query, count, at * static_cast<int>(keys));
      softmax(scores, output, row_max, row_sum);
      if constexpr (masked) masks.apply(s, scores, at * keys, 1.0f);
      wait_for_copies();
      block.barrier();  // the values are there; nobody needs the keys
      if (at + 1 < tiles.end) load_keys(key_tile, k, at + 1);
      output.add_product(scores, value_tile, 0);
    }
    wait_for_copies();
    store(output, row_max, row_sum, n, first_query, count);
  }

 private:
  NANOTRON_FUNCTION float scale_of_scores() const { return mapped ? 1.0f : scale; }

  NANOTRON_FUNCTION void mask(Scores& scores, index_t sequence, index_t first_query, index_t count,
                              int first_key) const {
    struct Keys {
      int begin = 0, end = 0;
    };
    OfRows<Keys> seen;
    for (int kept = 0; kept < kept_threads<threads>(); ++kept) {
      NANOTRON_UNROLL
      for (int r = 0; r < rows_of_thread; ++r) {
        const index_t i = row_of<row_tiles>(thread_of(kept), r);
        const Range of_query = i < count ? heads.s.keys_of(sequence, first_query + i) : Range{0, 0};
        seen.of[kept][r] = {static_cast<int>(of_query.begin), static_cast<int>(of_query.end)};
      }
    }
    scores.for_each([&](int kept, int r, int column, float& x) {
      const int key = first_key + column;
      if (key < seen.of[kept][r].begin || key >= seen.of[kept][r].end) x = no_score;
    });
  }

  NANOTRON_FUNCTION void softmax(Scores& scores, SumTile<width, row_tiles, threads>& output, OfRows<float>& row_max,
                                 OfRows<float>& row_sum) const {
    const float factor = scale_of_scores() * log2_of_e;
    OfRows<float> before = row_max, scaled_max;
    scores.for_each([&](int kept, int r, int, float& x) {
      float& m = row_max.of[kept][r];
      m = m < x ? x : m;
    });
    combine_rows(row_max, [](float a, float b) { return a < b ? b : a; });
    for (int kept = 0; kept < kept_threads<threads>(); ++kept) {
      NANOTRON_UNROLL
      for (int r = 0; r < rows_of_thread; ++r) {
        // Of a row without a score yet: 0, so that exp(score - max) is 0.
        const float m = row_max.of[kept][r] == no_score ? 0.0f : factor * row_max.of[kept][r];
        const float rescale = exponential_of_2(std::fma(factor, before.of[kept][r], -m));
        before.of[kept][r] = rescale;
        row_sum.of[kept][r] *= rescale;
        scaled_max.of[kept][r] = m;
      }
    }
    scores.for_each([&](int kept, int r, int, float& x) {
      x = exponential_of_2(std::fma(factor, x, -scaled_max.of[kept][r]));
      row_sum.of[kept][r] += x;
    });
    output.for_each([&](int kept, int r, int, float& x) { x *= before.of[kept][r]; });
  }

  template <class Combine>
  NANOTRON_FUNCTION static void combine_rows(OfRows<float>& x, const Combine& combine) {
    NANOTRON_UNROLL
    for (int r = 0; r < rows_of_thread; ++r) {
      PerThread<float, threads> one;
      for (int kept = 0; kept < kept_threads<threads>(); ++kept) one.of[kept] = x.of[kept][r];
      combine_quads(one, combine);
      for (int kept = 0; kept < kept_threads<threads>(); ++kept) x.of[kept][r] = one.of[kept];
    }
  }

  NANOTRON_FUNCTION void store(SumTile<width, row_tiles, threads>& output, const OfRows<float>& row_max,
                               OfRows<float>& row_sum, index_t n, index_t first_query, index_t count) const {
    combine_rows(row_sum, [](float a, float b) { return a + b; });
    for (int kept = 0; kept < kept_threads<threads>(); ++kept) {
      NANOTRON_UNROLL
      for (int r = 0; r < rows_of_thread; ++r) {
        const index_t i = row_of<row_tiles>(thread_of(kept), r);
        float& total = row_sum.of[kept][r];
        const bool has_keys = total != 0.0f;  // and where it is not a number
        if (i < count && thread_of(kept) % 4 == 0) {
          lse[n * heads.s.query_row_stride() + first_query + i] =
              has_keys ? scale_of_scores() * row_max.of[kept][r] + std::log(total) : no_keys;
        }
        total = has_keys ? (masked ? mask_factor(heads.s) : 1.0f) / total : 0.0f;
      }
    }
    output.for_each([&](int kept, int r, int, float& x) { x *= row_sum.of[kept][r]; });
    store_rounded(output, heads.query(out, n, first_query), out.leading, count, heads.s.head_dim);
  }
};

// Attention's backward (FlashAttention-2, Dao 2023, algorithm 2) as two kernels, each of which adds up its gradients in
// registers in one order, without atomics; the probabilities are computed in both:
//
//   QueryGradient   queries of one head, tile by tile of keys      dQ += scale dS K;  D = rows of dO * O, kept for the
//   other KeyGradient     keys of one key head, query head by query head, tile by tile of queries
//                                                                  dV += P^T dO,  dK += scale dS^T Q
//   P = exp(scale S - lse)     dS = P * (dO V^T - D)
//
// A random mask M is of P in P^T dO, and of dO V^T.

/// What both kernels read. lse and dot: as long as attention.hpp says, and batch * query_heads * query_length.
struct BackwardInputs {
  blocked::Heads heads;
  MatrixRef<const bf16> q, k, v, dout;
  const float* lse;
  float* dot;  // D
  float scale;

  /// Of a score, or of a product that is not mapped; lse: as lse_of_2.
  template <bool mapped>
  NANOTRON_FUNCTION float probability(float score, float lse_in_2) const {
    return exponential_of_2(std::fma((mapped ? 1.0f : scale) * log2_of_e, score, -lse_in_2));
  }
  /// lse of query i of head n, of exponentials of 2. 0 where the query has no keys.
  NANOTRON_FUNCTION float lse_of_2(index_t n, index_t i) const {
    const float x = lse[n * heads.s.query_row_stride() + i];
    return x > no_keys ? log2_of_e * x : 0.0f;
  }
};

}  // namespace nanotron::kernels::mma
