#pragma once

// Buffers of bf16 attention on tiles (attention_tiles_host.cpp), and what is computed between its GEMMs.

#include <algorithm>
#include <cstdint>
#include <limits>

#include "kernels/attention/attention_blocks.hpp"
#include "kernels/attention/host/softmax_rows.hpp"
#include "kernels/gemm/bf16_tiles.hpp"
#include "nanotron/base/elementary/exponential.hpp"

#ifdef NANOTRON_HAS_BF16_TILES
namespace nanotron::kernels::bf16_tiles {

inline constexpr index_t query_tile = 128;
inline constexpr index_t pair = 2 * tile_extent;  // rows and columns of C in multiply_block

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

struct HeadBuffers {
  HeadBuffers(std::byte* base, const AttentionShape& s)
      : slices{base}, width(padded(s.head_dim)), keys(padded(s.key_length)) {}
  Slices slices;
  index_t width, keys;  // padded
};

template <index_t key_tile>
struct ForwardBuffers : HeadBuffers {
  using HeadBuffers::HeadBuffers;
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
struct BackwardBuffers : HeadBuffers {
  using HeadBuffers::HeadBuffers;
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

// exp to about 2 units in the last place: Cephes' polynomial (base/elementary/exponential.hpp), without its last bits
// of the reduction.
inline Floats exp16(Floats x) {
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
[[gnu::noinline]] inline Mask lanes_of(const Range& seen, index_t j) {
  return lanes_between(seen.begin - j, seen.end - j);
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
// The operations of attention_host.cpp, and its tiles of keys. p and ds are rounded as bf16 rounds, before
// store_rounded, which flushes subnormal numbers first: what rounds up to 2^-126 is none.
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
      const ScoreGradient<float> of = gradient_of_score<bf16>(scores[q], scale, lse[q], dp[q], dot[q]);
      const bool sees = at >= begin[q] && at < end[q];
      of_p[q] = sees ? of.p : 0.0f;
      of_ds[q] = sees ? of.ds : 0.0f;
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

}  // namespace nanotron::kernels::bf16_tiles
#endif
