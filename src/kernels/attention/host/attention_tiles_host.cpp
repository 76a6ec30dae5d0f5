#include "kernels/attention/attention_tiles.hpp"

#include <limits>

#include "kernels/attention/host/score_maxima_tiles.hpp"
#include "kernels/attention/host/score_tiles.hpp"
#include "kernels/attention/host/tile_rules.hpp"
#include "kernels/dropout/masked_tiles.hpp"
#include "kernels/gemm/gemm_tiles.hpp"
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

// Of what a tile has before its softmax: products, or mapped scores.
float scale_of_tile(const AttentionShape& s) { return s.scores.is_scale() ? scale_of<float>(s) : 1.0f; }

template <class E>
MatrixRef<E> head_of(const AttentionShape& s, MatrixRef<E> x, index_t head, index_t row, index_t rows) {
  return x.column_block(head * s.head_dim, s.head_dim).row_block(row, rows);
}

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
  const bool has_groups = sums.dkey != nullptr;
  const float* const dkey = has_groups ? sums.dkey : w.dkey;
  const float* const dvalue = has_groups ? sums.dvalue : w.dvalue;
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
