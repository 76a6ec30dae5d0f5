#include "kernels/attention/attention_tiles.hpp"

#include <limits>

#include "kernels/attention/attention_blocks.hpp"
#include "kernels/attention/host/score_maxima_tiles.hpp"
#include "kernels/attention/host/score_tiles.hpp"
#include "kernels/attention/host/softmax_rows.hpp"
#include "kernels/dropout/masked_tiles.hpp"
#include "kernels/gemm/bf16_tiles.hpp"
#include "kernels/gemm/gemm_tiles.hpp"
#include "nanotron/base/elementary/exponential.hpp"
#include "nanotron/base/elementary/logarithm.hpp"

// bf16 attention on tiles. As in attention_host.cpp, a worker packs one key head once and runs
// its query heads against it; here the operands are packed tiles.
//   forward    scores (query, key): p is the A operand of o = p v
//   backward   scores (key, query): p and ds are the A operands of dv = p^T do and dk = ds^T q,
//              and ds, as B tiles too, is the B operand of dq^T = k^T ds
// With GemmMode::fixed_order the GEMMs are the same, in the order of AMX, and what is between them has the operations
// of attention_host.cpp.

namespace nanotron::kernels::bf16_tiles {

#ifdef NANOTRON_HAS_BF16_TILES

namespace {

constexpr index_t query_tile = 128;
constexpr index_t pair = 2 * tile_extent;  // rows and columns of C in multiply_block

constexpr index_t padded(index_t n) { return tiles(n, pair) * pair; }

struct Slices {
  std::byte* base;  // null: only count
  std::size_t bytes = 0;
  template <class E>
  E* take(index_t n) {
    E* piece = base == nullptr ? nullptr : reinterpret_cast<E*>(base + bytes);
    bytes += (static_cast<std::size_t>(n) * sizeof(E) + 63) / 64 * 64;
    return piece;
  }
};

template <index_t key_tile>
struct ForwardBuffers {
  ForwardBuffers(std::byte* base, const AttentionShape& s)
      : slices{base}, width(padded(s.head_dim)), keys(padded(s.key_length)) {}
  Slices slices;
  index_t width, keys;                            // padded
  bf16* key = slices.take<bf16>(keys * width);    // B of s = q k^T
  bf16* value = slices.take<bf16>(keys * width);  // B of o = p v
  bf16* query = slices.take<bf16>(query_tile * width);
  bf16* p = slices.take<bf16>(query_tile * key_tile);
  float* scores = slices.take<float>(query_tile * key_tile);
  float* out = slices.take<float>(query_tile * width);
  float* max = slices.take<float>(query_tile);
  float* sum = slices.take<float>(query_tile);
};

template <index_t key_tile>
struct BackwardBuffers {
  BackwardBuffers(std::byte* base, const AttentionShape& s)
      : slices{base}, width(padded(s.head_dim)), keys(padded(s.key_length)) {}
  Slices slices;
  index_t width, keys;                            // padded
  bf16* key = slices.take<bf16>(keys * width);    // A of s^T = k q^T
  bf16* value = slices.take<bf16>(keys * width);  // A of dp^T = v do^T
  bf16* key_t = slices.take<bf16>(keys * width);  // A of dq^T = k^T ds
  float* dkey = slices.take<float>(keys * width);
  float* dvalue = slices.take<float>(keys * width);
  bf16* query_t = slices.take<bf16>(query_tile * width);  // B of s^T
  bf16* dout_t = slices.take<bf16>(query_tile * width);   // B of dp^T
  bf16* query = slices.take<bf16>(query_tile * width);    // B of dk
  bf16* dout = slices.take<bf16>(query_tile * width);     // B of dv
  float* scores = slices.take<float>(key_tile * query_tile);
  float* dp = slices.take<float>(key_tile * query_tile);
  bf16* p = slices.take<bf16>(key_tile * query_tile);     // A of dv
  bf16* ds = slices.take<bf16>(key_tile * query_tile);    // A of dk
  bf16* ds_b = slices.take<bf16>(key_tile * query_tile);  // B of dq^T
  float* dquery_t = slices.take<float>(width * query_tile);
  float* lse = slices.take<float>(query_tile);
  float* dot = slices.take<float>(query_tile);
  std::int32_t* begin = slices.take<std::int32_t>(query_tile);  // of the keys each query attends to
  std::int32_t* end = slices.take<std::int32_t>(query_tile);
};

// The sums of dk and dv over the query heads of a key head, behind the other buffers; null where there is one.
struct HeadSums {
  HeadSums() = default;
  HeadSums(Slices& slices, const AttentionShape& s, index_t elements) {
    if (s.query_heads == s.key_heads) return;
    dkey = slices.take<float>(elements);
    dvalue = slices.take<float>(elements);
  }
  float *dkey = nullptr, *dvalue = nullptr;
};

// exp to about 2 units in the last place, see scalar_math.hpp.
Floats exp16(Floats x) {
  const Floats n = nearest(multiply(x, all(1.44269504088896341f)));
  Floats r = subtract_product(n, all(0.693359375f), x);
  r = subtract_product(n, all(-2.12194440e-4f), r);
  Floats p = all(1.9875691500e-4f);
  for (const float c : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f}) {
    p = multiply_add(p, r, all(c));
  }
  p = multiply_add(p, multiply(r, r), add(r, all(1.0f)));
  return times_power(p, n);
}

// Which of the lanes j ... j + 15 are in `seen`. (Not inline: the loops that call it are unrolled.)
[[gnu::noinline]] Mask lanes_of(const Range& seen, index_t j) { return lanes_between(seen.begin - j, seen.end - j); }

// Of what a tile has before its softmax: products, or mapped scores.
float scale_of_tile(const AttentionShape& s) { return s.scores.is_scale() ? scale_of<float>(s) : 1.0f; }

template <class E>
MatrixRef<E> head_of(const AttentionShape& s, MatrixRef<E> x, index_t head, index_t row, index_t rows) {
  return x.column_block(head * s.head_dim, s.head_dim).row_block(row, rows);
}

// Offset of element i in a row of A tiles.
constexpr index_t in_row(index_t i) { return i / tile_depth * tile_elements + i % tile_depth; }

template <index_t key_tile>
bf16* row_of_p(const ForwardBuffers<key_tile>& w, index_t row, index_t key_tiles) {
  return w.p + row / tile_extent * key_tiles * tile_elements + row % tile_extent * tile_depth;
}

// What is between the GEMMs: as fast as it goes.
struct Fastest {
  static constexpr index_t key_tile = 128;
  using Forward = ForwardBuffers<key_tile>;
  using Backward = BackwardBuffers<key_tile>;

  // Online softmax of one row of scores; p is a row of A tiles.
  static void softmax_row(const Forward& w, index_t row, Range seen, index_t key_tiles, float scale) {
    const float* const scores = w.scores + row * key_tile;
    bf16* const p = row_of_p<key_tile>(w, row, key_tiles);
    Floats top = all(std::numeric_limits<float>::lowest());
    for (index_t j = seen.begin / 16 * 16; j < seen.end; j += 16)
      top = larger(lanes_of(seen, j), top, load(scores + j));
    const float before = w.max[row];
    const float now = std::max(before, largest(top) * scale);
    const Floats factor = all(scale), maximum = all(now);
    Floats added = all(0.0f);
    for (index_t j = 0; j < key_tiles * tile_depth; j += 16) {
      const Mask mask = lanes_of(seen, j);
      const Floats value = kept(mask, exp16(multiply_subtract(load_or_zero(mask, scores + j), factor, maximum)));
      added = add(added, value);
      store_rounded(p + in_row(j), first_lanes(16), value);
    }
    if (now != before) {
      const float shrink = exponential(before - now);
      w.sum[row] *= shrink;
      float* const out = w.out + row * w.width;
      for (index_t c = 0; c < w.width; ++c) out[c] *= shrink;
      w.max[row] = now;
    }
    w.sum[row] += sum(added);
  }

  // p and ds of a key and `count` queries, each to a row of A tiles.
  static void gradient_row(const Backward& w, index_t key, index_t count, float scale, bf16* p_row, bf16* ds_row) {
    const Floats factor = all(scale);
    for (index_t q = 0; q < count; q += 16) {
      const Mask mask = lanes_with(static_cast<std::int32_t>(key), w.begin + q, w.end + q);
      Floats p = all(0.0f), ds = p;
      if (any(mask)) {
        const Floats score = load_or_zero(mask, w.scores + key * query_tile + q);
        p = kept(mask, exp16(multiply_subtract(score, factor, load(w.lse + q))));
        ds = kept(mask, multiply(p, subtract(load_or_zero(mask, w.dp + key * query_tile + q), load(w.dot + q))));
      }
      store_rounded(p_row + in_row(q), first_lanes(16), p);
      store_rounded(ds_row + in_row(q), first_lanes(16), ds);
    }
  }

  // do . o of a row.
  static float row_product(index_t n, const bf16* dout, const bf16* out) {
    Floats products = all(0.0f);
    for (index_t c = 0; c < n; c += 16) {
      const FirstLanes part = first_lanes(n - c);
      products = multiply_add(load_widened(out + c, part), load_widened(dout + c, part), products);
    }
    return sum(products);
  }

  static void store_row(const float* from, index_t n, float factor, bf16* to) {
    const Floats by = all(factor);
    for (index_t c = 0; c < n; c += 16) store_rounded(to + c, first_lanes(n - c), multiply(by, load(from + c)));
  }

  // dk and dv continue their sums from query head to query head.
  static HeadSums head_sums(Slices&, const AttentionShape&, index_t) { return {}; }
};

#ifdef NANOTRON_HAS_AMX
// The operations of attention_host.cpp, and its tiles of keys. (store_rounded flushes subnormal numbers, as the GEMMs
// that read them do.)
struct InOrder {
  static constexpr index_t key_tile = blocked::ordered_key_block;
  static_assert(key_tile % pair == 0);
  using Forward = ForwardBuffers<key_tile>;
  using Backward = BackwardBuffers<key_tile>;

  static void softmax_row(const Forward& w, index_t row, Range seen, index_t key_tiles, float scale) {
    float* const scores = w.scores + row * key_tile;
    const index_t padded_keys = key_tiles * tile_depth;
    softmax_step<bf16>(scores, scale, seen, padded_keys, w.max[row], w.sum[row], w.out + row * w.width, w.width);
    bf16* const p = row_of_p<key_tile>(w, row, key_tiles);
    for (index_t j = 0; j < padded_keys; j += 16) store_rounded(p + in_row(j), first_lanes(16), load(scores + j));
  }

  static void gradient_row(const Backward& w, index_t key, index_t count, float scale, bf16* p_row, bf16* ds_row) {
    alignas(64) float p[query_tile], ds[query_tile];
    const auto any_sees = [&](index_t q) {
      return any(lanes_with(static_cast<std::int32_t>(key), w.begin + q, w.end + q));
    };
    index_t first = 0, last = count;  // of the queries that may attend to the key
    while (first < last && !any_sees(first)) first += 16;
    while (last > first && !any_sees(last - 16)) last -= 16;
    std::fill(p, p + first, 0.0f), std::fill(ds, ds + first, 0.0f);
    std::fill(p + last, p + count, 0.0f), std::fill(ds + last, ds + count, 0.0f);
    const float *const scores = w.scores + key * query_tile + first, *const dp = w.dp + key * query_tile + first;
    const float *const lse = w.lse + first, *const dot = w.dot + first;
    const std::int32_t *const begin = w.begin + first, *const end = w.end + first;
    float *const of_p = p + first, *const of_ds = ds + first;
    const auto at = static_cast<std::int32_t>(key);
    HostRow{}.for_each(last - first, [=](index_t q) {
      const float probability = exponential(scale * scores[q] - lse[q]), slope = probability * (dp[q] - dot[q]);
      const bool sees = at >= begin[q] && at < end[q];
      of_p[q] = sees ? probability : 0.0f;
      of_ds[q] = sees ? slope : 0.0f;
    });
    for (index_t q = 0; q < count; q += 16) {
      store_rounded(p_row + in_row(q), first_lanes(16), load(p + q));
      store_rounded(ds_row + in_row(q), first_lanes(16), load(ds + q));
    }
  }

  static float row_product(index_t n, const bf16* dout, const bf16* out) {
    return kernels::row_product<float>(n, dout, out);
  }
  static void store_row(const float* from, index_t n, float factor, bf16* to) {
    kernels::store_row(from, n, factor, to);
  }
  static HeadSums head_sums(Slices& slices, const AttentionShape& s, index_t elements) { return {slices, s, elements}; }
};
#endif

// One tile of packed queries against all keys they attend to.
template <class Rule>
void forward_tile(const AttentionShape& s, const typename Rule::Forward& w, index_t sequence, index_t head,
                  index_t first, index_t queries) {
  constexpr index_t key_tile = Rule::key_tile;
  const Range met = detail::keys_met(s, sequence, first, queries, key_tile);
  const index_t offset = s.query_position - s.key_position + first;  // last key of the first query
  const index_t rows = padded(queries), depth = tiles(s.head_dim, tile_depth);
  const index_t strip = depth * tile_elements, value_strip = tiles(s.key_length, tile_depth) * tile_elements;
  const float scale = scale_of_tile(s);
  std::fill(w.out, w.out + rows * w.width, 0.0f);
  std::fill(w.max, w.max + queries, std::numeric_limits<float>::lowest());
  std::fill(w.sum, w.sum + queries, 0.0f);
  for (index_t j = met.begin; j < met.end; j += key_tile) {
    const index_t keys = std::min(key_tile, met.end - j);
    const index_t key_tiles = tiles(keys, tile_depth);
    for (index_t i = 0; i < rows; i += pair) {
      for (index_t c = 0; c < key_tiles * tile_depth; c += pair) {
        if (j + c > offset + i + pair - 1) continue;  // causal: all keys are after the queries
        multiply_block(w.query + i / tile_extent * strip, strip, w.key + (j + c) / tile_extent * strip, strip, depth,
                       w.scores + i * key_tile + c, key_tile, false);
      }
    }
    if (!s.scores.is_scale()) {
      map_scores(s, head, scale_of<float>(s), {w.scores, key_tile, queries, keys, first, j});
    }
    for (index_t r = 0; r < queries; ++r) {
      Rule::softmax_row(w, r, s.keys_of(sequence, first + r, j, keys), key_tiles, scale);
    }
    if (s.mask.is_on()) mask_packed(s, {sequence, head, first, j, queries, keys}, w.p, tile_extent, tile_depth);
    for (index_t i = 0; i < rows; i += pair) {
      for (index_t c = 0; c < w.width; c += pair) {
        multiply_block(w.p + i / tile_extent * key_tiles * tile_elements, key_tiles * tile_elements,
                       w.value + c / tile_extent * value_strip + j / tile_depth * tile_elements, value_strip, key_tiles,
                       w.out + i * w.width + c, w.width, true);
      }
    }
  }
}

// p and ds of one tile from scores and dp, two keys at a time: both as A tiles, ds as B tiles too.
template <class Rule>
void gradient_tile(const typename Rule::Backward& w, index_t queries, index_t keys, float scale) {
  const index_t query_tiles = tiles(queries, tile_depth), key_tiles = tiles(keys, tile_depth);
  for (index_t k = 0; k < key_tiles * tile_depth; k += 2) {
    const index_t even = k / tile_extent * query_tiles * tile_elements + k % tile_extent * tile_depth;
    const index_t odd = even + tile_depth;
    Rule::gradient_row(w, k, query_tiles * tile_depth, scale, w.p + even, w.ds + even);
    Rule::gradient_row(w, k + 1, query_tiles * tile_depth, scale, w.p + odd, w.ds + odd);
    for (index_t q = 0; q < query_tiles * tile_depth; q += 16) {
      store(w.ds_b + (q / tile_extent * key_tiles + k / tile_depth) * tile_elements + k % tile_depth / 2 * tile_depth,
            pairs(load_half(w.ds + even + in_row(q), first_lanes(16)),
                  load_half(w.ds + odd + in_row(q), first_lanes(16))));
    }
  }
}

// The GEMMs of one tile, after gradient_tile: dvalue, dkey from key j on, and dquery_t.
template <index_t key_tile>
void accumulate_tile(const BackwardBuffers<key_tile>& w, index_t queries, index_t keys, index_t j, index_t all_keys) {
  const index_t query_tiles = tiles(queries, tile_depth), key_tiles = tiles(keys, tile_depth);
  const index_t query_strip = query_tiles * tile_elements, key_strip = key_tiles * tile_elements;
  const index_t key_t_strip = tiles(all_keys, tile_depth) * tile_elements;
  for (index_t c = 0; c < w.width; c += pair) {
    const index_t b = c / tile_extent * query_strip;
    for (index_t i = 0; i < key_tiles * tile_depth; i += pair) {
      const index_t a = i / tile_extent * query_strip, target = (j + i) * w.width + c;
      multiply_block(w.p + a, query_strip, w.dout + b, query_strip, query_tiles, w.dvalue + target, w.width, true);
      multiply_block(w.ds + a, query_strip, w.query + b, query_strip, query_tiles, w.dkey + target, w.width, true);
    }
    for (index_t q = 0; q < query_tiles * tile_depth; q += pair) {
      multiply_block(w.key_t + c / tile_extent * key_t_strip + j / tile_depth * tile_elements, key_t_strip,
                     w.ds_b + q / tile_extent * key_strip, key_strip, key_tiles, w.dquery_t + c * query_tile + q,
                     query_tile, true);
    }
  }
}

template <class Rule>
void backward_tile(const AttentionShape& s, const typename Rule::Backward& w, index_t sequence, index_t head,
                   index_t first, index_t queries) {
  constexpr index_t key_tile = Rule::key_tile;
  const Range met = detail::keys_met(s, sequence, first, queries, key_tile);
  const index_t offset = s.query_position - s.key_position + first;
  const index_t depth = tiles(s.head_dim, tile_depth), strip = depth * tile_elements;
  const index_t columns = padded(queries);
  const float scale = scale_of_tile(s);
  std::fill(w.dquery_t, w.dquery_t + w.width * query_tile, 0.0f);
  for (index_t j = met.begin; j < met.end; j += key_tile) {
    const index_t keys = std::min(key_tile, met.end - j);
    for (index_t q = 0; q < columns; ++q) {
      const Range seen = q < queries ? s.keys_of(sequence, first + q, j, keys) : Range{};
      w.begin[q] = static_cast<std::int32_t>(seen.begin);
      w.end[q] = static_cast<std::int32_t>(seen.end);
    }
    for (index_t i = 0; i < padded(keys); i += pair) {
      for (index_t q = 0; q < columns; q += pair) {
        if (j + i > offset + q + pair - 1) continue;  // causal: all keys are after the queries
        const index_t a = (j + i) / tile_extent * strip, b = q / tile_extent * strip;
        multiply_block(w.key + a, strip, w.query_t + b, strip, depth, w.scores + i * query_tile + q, query_tile, false);
        multiply_block(w.value + a, strip, w.dout_t + b, strip, depth, w.dp + i * query_tile + q, query_tile, false);
      }
    }
    raise_maxima(s, sequence, head, scale_of<float>(s), {w.scores, query_tile, keys, queries, first, j, true});
    const MaskedTile tile{sequence, head, first, j, keys, queries, true};
    if (s.mask.is_on()) mask_tile(s, tile, static_cast<float>(s.mask.factor()), w.dp, query_tile);
    if (!s.scores.is_scale()) {
      map_scores_and_gradient(s, head, scale_of<float>(s), {w.scores, query_tile, keys, queries, first, j, true}, w.dp,
                              w.dot);
    }
    gradient_tile<Rule>(w, queries, keys, scale);
    if (s.mask.is_on()) mask_packed(s, tile, w.p, tile_extent, tile_depth);
    accumulate_tile(w, queries, keys, j, s.key_length);
  }
}

// Packs one tile of queries and of dout; loads lse and computes dot = do . o of its rows.
template <class Rule>
void load_queries(const typename Rule::Backward& w, MatrixRef<const bf16> q, MatrixRef<const bf16> out,
                  MatrixRef<const bf16> dout, const float* lse) {
  pack_along_depth<true>(q.data, q.leading, q.rows, q.columns, w.query_t);
  pack_along_depth<true>(dout.data, dout.leading, q.rows, q.columns, w.dout_t);
  pack_across_depth<false>(q.data, q.leading, q.columns, q.rows, w.query);
  pack_across_depth<false>(dout.data, dout.leading, q.columns, q.rows, w.dout);
  for (index_t r = 0; r < padded(q.rows); ++r) {
    w.dot[r] = r < q.rows ? Rule::row_product(q.columns, &dout(r, 0), &out(r, 0)) : 0.0f;
    w.lse[r] = r < q.rows ? lse[r] : 0.0f;
  }
}

template <class Rule>
std::size_t bytes_of(const AttentionShape& s) {
  typename Rule::Backward backward(nullptr, s);
  Rule::head_sums(backward.slices, s, backward.keys * backward.width);
  return std::max(typename Rule::Forward(nullptr, s).slices.bytes, backward.slices.bytes);
}

template <class Rule>
void forward_of_head(const AttentionShape& s, index_t sequence, index_t key_head, MatrixRef<const bf16> q,
                     MatrixRef<const bf16> k, MatrixRef<const bf16> v, MatrixRef<bf16> out, float* lse,
                     std::byte* memory) {
  const TileScope tiles_configured;
  const typename Rule::Forward w(memory, s);
  const auto key = head_of(s, k, key_head, sequence * s.key_row_stride(), s.key_length);
  const auto value = head_of(s, v, key_head, sequence * s.key_row_stride(), s.key_length);
  pack_along_depth<true>(key.data, key.leading, s.key_length, s.head_dim, w.key);
  pack_across_depth<false>(value.data, value.leading, s.head_dim, s.key_length, w.value);
  const auto kept = static_cast<float>(s.mask.factor());
  for (index_t head = 0; head < s.query_heads; ++head) {
    if (s.key_head_of(head) != key_head) continue;
    for (index_t first = 0; first < s.query_length; first += query_tile) {
      const index_t queries = std::min(query_tile, s.query_length - first);
      const index_t row = sequence * s.query_row_stride() + first;
      const auto query = head_of(s, q, head, row, queries);
      pack_along_depth<false>(query.data, query.leading, queries, s.head_dim, w.query);
      forward_tile<Rule>(s, w, sequence, head, first, queries);
      float* const lse_rows = lse + (sequence * s.query_heads + head) * s.query_row_stride() + first;
      for (index_t r = 0; r < queries; ++r) {
        const bool sees = w.sum[r] > 0.0f;
        Rule::store_row(w.out + r * w.width, s.head_dim, sees ? kept / w.sum[r] : 0.0f,
                        &head_of(s, out, head, row + r, 1)(0, 0));
        lse_rows[r] = sees ? w.max[r] + logarithm(w.sum[r]) : std::numeric_limits<float>::lowest();
      }
    }
  }
}

template <class Rule>
void backward_of_head(const AttentionShape& s, index_t sequence, index_t key_head,
                      const detail::AttentionGradients<bf16>& t, std::byte* memory) {
  const TileScope tiles_configured;
  typename Rule::Backward w(memory, s);
  const index_t elements = w.keys * w.width;
  const HeadSums sums = Rule::head_sums(w.slices, s, elements);
  const index_t key_row = sequence * s.key_row_stride();
  const auto key = head_of(s, t.k, key_head, key_row, s.key_length);
  const auto value = head_of(s, t.v, key_head, key_row, s.key_length);
  pack_along_depth<false>(key.data, key.leading, s.key_length, s.head_dim, w.key);
  pack_along_depth<false>(value.data, value.leading, s.key_length, s.head_dim, w.value);
  pack_across_depth<true>(key.data, key.leading, s.head_dim, s.key_length, w.key_t);
  const float scale = scale_of<float>(s);
  bool is_first = true;
  for (index_t head = 0; head < s.query_heads; ++head) {
    if (s.key_head_of(head) != key_head) continue;
    if (is_first || sums.dkey != nullptr) {
      std::fill(w.dkey, w.dkey + elements, 0.0f);
      std::fill(w.dvalue, w.dvalue + elements, 0.0f);
    }
    for (index_t first = 0; first < s.query_length; first += query_tile) {
      const index_t queries = std::min(query_tile, s.query_length - first);
      const index_t row = sequence * s.query_row_stride() + first;
      load_queries<Rule>(w, head_of(s, t.q, head, row, queries), head_of(s, t.out, head, row, queries),
                         head_of(s, t.dout, head, row, queries),
                         t.lse.data() + (sequence * s.query_heads + head) * s.query_row_stride() + first);
      backward_tile<Rule>(s, w, sequence, head, first, queries);
      const auto dq = head_of(s, t.dq, head, row, queries);
      for (index_t r = 0; r < queries; ++r) {
        for (index_t c = 0; c < s.head_dim; ++c) dq(r, c) = bf16(scale * w.dquery_t[c * query_tile + r]);
      }
    }
    add_head(is_first, elements, w.dkey, sums.dkey);
    add_head(is_first, elements, w.dvalue, sums.dvalue);
    is_first = false;
  }
  const float *const dkey = sums.dkey != nullptr ? sums.dkey : w.dkey, *const dvalue = sums.dvalue != nullptr
                                                                                           ? sums.dvalue
                                                                                           : w.dvalue;
  const auto dk = head_of(s, t.dk, key_head, key_row, s.key_length);
  const auto dv = head_of(s, t.dv, key_head, key_row, s.key_length);
  for (index_t r = 0; r < s.key_length; ++r) {
    Rule::store_row(dkey + r * w.width, s.head_dim, scale, &dk(r, 0));
    Rule::store_row(dvalue + r * w.width, s.head_dim, static_cast<float>(s.mask.factor()), &dv(r, 0));
  }
}

#ifndef NANOTRON_HAS_AMX
using InOrder = Fastest;  // attends() refuses it
#endif

}  // namespace

#ifdef NANOTRON_HAS_AMX
bool attends(GemmMode) { return available(); }
#else
bool attends(GemmMode mode) { return mode == GemmMode::library && available(); }
#endif

std::size_t attention_bytes(const AttentionShape& s) { return std::max(bytes_of<Fastest>(s), bytes_of<InOrder>(s)); }

void forward_head(GemmMode mode, const AttentionShape& s, index_t sequence, index_t key_head, MatrixRef<const bf16> q,
                  MatrixRef<const bf16> k, MatrixRef<const bf16> v, MatrixRef<bf16> out, float* lse,
                  std::byte* memory) {
  if (mode == GemmMode::fixed_order)
    forward_of_head<InOrder>(s, sequence, key_head, q, k, v, out, lse, memory);
  else
    forward_of_head<Fastest>(s, sequence, key_head, q, k, v, out, lse, memory);
}

void backward_head(GemmMode mode, const AttentionShape& s, index_t sequence, index_t key_head,
                   const detail::AttentionGradients<bf16>& t, std::byte* memory) {
  if (mode == GemmMode::fixed_order)
    backward_of_head<InOrder>(s, sequence, key_head, t, memory);
  else
    backward_of_head<Fastest>(s, sequence, key_head, t, memory);
}

#else

bool attends(GemmMode) { return false; }
std::size_t attention_bytes(const AttentionShape&) { return 0; }
void forward_head(GemmMode, const AttentionShape&, index_t, index_t, MatrixRef<const bf16>, MatrixRef<const bf16>,
                  MatrixRef<const bf16>, MatrixRef<bf16>, float*, std::byte*) {}
void backward_head(GemmMode, const AttentionShape&, index_t, index_t, const detail::AttentionGradients<bf16>&,
                   std::byte*) {}

#endif

}  // namespace nanotron::kernels::bf16_tiles
