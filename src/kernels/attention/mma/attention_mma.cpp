#include "nanotron/kernels/attention/attention_gpu.hpp"

#include <cmath>

#include "kernels/attention/mma/forward.hpp"
#include "kernels/dropout/masked_fragments.hpp"

namespace nanotron::kernels::mma {

/// Of a block of queries of one head; D is stored before the other kernel reads it.
template <int width, bool mapped, bool masked>
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
    const RowMasks<masked, row_tiles, threads> masks(s, sequence, heads.head(n), first_query);
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
      if constexpr (masked) masks.apply(s, dp, at * keys, mask_factor(s));
      if constexpr (mapped) {
        const HeadScores<float> map(s, heads.head(n), in.scale);
        map_gradient(map, scores, dp, [&](int kept, int r, int) { return rows.of[kept][r].dot; });
        map_scores<row_tiles>(map, scores, first_query, at * keys);
      }
      if (!tiles.is_whole(at * keys, keys)) {
        scores.for_each([&](int kept, int r, int column, float& x) {
          const int key = at * static_cast<int>(keys) + column;
          if (key < rows.of[kept][r].begin || key >= rows.of[kept][r].end) x = no_score;
        });
      }
      scores.for_each_with(dp, [&](int kept, int r, int, float& x, float of_dp) {
        x = in.probability<mapped>(x, rows.of[kept][r].lse) * (of_dp - rows.of[kept][r].dot);
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

/// Of a block of keys of one key head, over its query heads here, in order.
template <int width, bool mapped, bool masked>
struct KeyGradient {
  static constexpr int threads = 128, row_tiles = 1;
  static constexpr index_t keys = threads / warp_size * 16, queries = 64, step = 32;  // of queries at a time
  using Tile = SharedTile<64, width>;
  /// Of the queries of a tile: the keys they see, lse and D.
  struct Columns : QueryMasks<masked, queries> {
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
      const bool is_whole = all_see(sequence, first_query, first_key);
      NANOTRON_UNROLL
      for (int part = 0; part < queries; part += step) {
        SumTile<step, row_tiles, threads> p, ds;
        p.clear();
        ds.clear();
        p.add_product(key_tile, query_tile, part);
        ds.add_product(value_tile, dout_tile, part);
        const Columns& columns = *columns_of(i);
        if constexpr (mapped) map(p, ds, columns, part, steps.head(i), first_query + part, first_key);
        if (!is_whole) mask(p, columns, part, static_cast<int>(first_key));
        p.for_each([&](int, int, int c, float& x) { x = in.probability<mapped>(x, columns.lse[part + c]); });
        ds.for_each_with(p, [&](int, int, int c, float& x, float of_p) { x = of_p * (x - columns.dot[part + c]); });
        if constexpr (masked) mask_columns<row_tiles>(s, columns, p, part, first_key, 1.0f);
        of_values.add_product(p, dout_tile, part);
        of_keys.add_product(ds, query_tile, part);
      }
    }
    wait_for_copies();
    multiply(of_keys, of_values);
    store_rounded(of_keys, &dk(row, column), dk.leading, count, s.head_dim);
    store_rounded(of_values, &dv(row, column), dv.leading, count, s.head_dim);
  }

 private:
  // By the factors that p and ds do not have.
  NANOTRON_FUNCTION void multiply(SumTile<width, row_tiles, threads>& of_keys,
                                  SumTile<width, row_tiles, threads>& of_values) const {
    of_keys.for_each([&](int, int, int, float& x) { x *= in.scale; });
    const float kept = mask_factor(in.heads.s);
    if constexpr (masked) of_values.for_each([&](int, int, int, float& x) { x *= kept; });
  }

  using Part = SumTile<step, row_tiles, threads>;  // rows are keys
  NANOTRON_FUNCTION void map(Part& scores, Part& dp, const Columns& columns, int part, index_t head,
                             index_t first_query, index_t first_key) const {
    if constexpr (masked) mask_columns<row_tiles>(in.heads.s, columns, dp, part, first_key, mask_factor(in.heads.s));
    const HeadScores<float> map(in.heads.s, head, in.scale);
    map_gradient(map, scores, dp, [&](int, int, int c) { return columns.dot[part + c]; });
    map_scores<row_tiles, true>(map, scores, first_query, first_key);
  }

  // Whether all queries of a tile see all keys of the block.
  NANOTRON_FUNCTION bool all_see(index_t sequence, index_t first_query, index_t first_key) const {
    const AttentionShape& s = in.heads.s;
    const index_t end = first_query + queries < s.query_length ? first_query + queries : s.query_length;
    return KeyTiles(s, sequence, first_query, end - 1, keys).is_whole(first_key, keys);
  }

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
      columns.set(i, s, in.heads.sequence(n), in.heads.head(n), query);
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

namespace {

// f(width, mapped, masked) with the width of tiles for the shape's heads; whether scores are mapped, and probabilities
// masked (then scores are mapped too, perhaps to themselves).
template <class F>
void with_width(const AttentionShape& s, const F& f) {
  const auto of = [&](auto width) {
    if (s.mask.is_on()) return f(width, std::true_type{}, std::true_type{});
    if (s.scores.is_scale()) return f(width, std::false_type{}, std::false_type{});
    f(width, std::true_type{}, std::false_type{});
  };
  if (s.head_dim <= 64) {
    of(std::integral_constant<int, 64>{});
  } else {
    NANOTRON_REQUIRE(s.head_dim <= max_head_dim, "attention: head_dim {}", s.head_dim);
    of(std::integral_constant<int, max_head_dim>{});
  }
}

}  // namespace

void attention_forward(Device& device, const AttentionShape& s, MatrixRef<const bf16> q, MatrixRef<const bf16> k,
                       MatrixRef<const bf16> v, MatrixRef<bf16> out, Vector<float> lse) {
  with_width(s, [&](auto width, auto mapped, auto masked) {
    using Kernel = Forward<decltype(width)::value, decltype(mapped)::value, decltype(masked)::value>;
    const Kernel kernel{{s}, q, k, v, out, lse.data(), scale_of(s)};
    launch_blocks(device, "attention_forward_mma", Kernel::blocks(s), kernel);
  });
}

void attention_backward(Device& device, const AttentionShape& s, const blocked::BackwardTensors<bf16>& t,
                        Vector<std::byte> workspace) {
  const BackwardInputs in{{s},        t.q, t.k, t.v, t.dout, t.lse.data(), reinterpret_cast<float*>(workspace.data()),
                          scale_of(s)};
  with_width(s, [&](auto width, auto mapped, auto masked) {
    using OfQueries = QueryGradient<decltype(width)::value, decltype(mapped)::value, decltype(masked)::value>;
    using OfKeys = KeyGradient<decltype(width)::value, decltype(mapped)::value, decltype(masked)::value>;
    launch_blocks(device, "attention_dq_mma", OfQueries::blocks(s), OfQueries{in, t.out, t.dq});
    launch_blocks(device, "attention_dkv_mma", OfKeys::blocks(s), OfKeys{in, t.dk, t.dv});
  });
}

std::size_t attention_workspace_bytes(const AttentionShape& s) {
  return sizeof(float) * static_cast<std::size_t>(s.batch * s.query_heads * s.query_length);
}

}  // namespace nanotron::kernels::mma
