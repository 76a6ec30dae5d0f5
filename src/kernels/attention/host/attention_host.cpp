#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/attention/attention_backend.hpp"
#include "kernels/attention/attention_blocks.hpp"
#include "kernels/attention/attention_tiles.hpp"
#include "kernels/attention/host/products.hpp"
#include "kernels/attention/host/score_maxima_tiles.hpp"
#include "kernels/attention/host/score_tiles.hpp"
#include "kernels/attention/host/softmax_rows.hpp"
#include "kernels/dropout/masked_tiles.hpp"
#include "kernels/gemm/gemm_tiles.hpp"
#include "nanotron/base/elementary/logarithm.hpp"
#include "nanotron/kernels/loop/loop.hpp"

// A worker processes one (sequence, key head) at a time: it copies the head's keys and values once,
// in the master type and transposed where a GEMM needs it, and runs its query heads against them,
// tile by tile. Workers are the threads of the execution space; each has its own slice of the
// workspace. An element has the same operations as in attention_blocked.cpp with GEMMs in a fixed order: scores times
// the scale, the softmax by tiles of key_tile keys, sums of products from the first key (query) to the last.

namespace nanotron::kernels::detail {
namespace {

constexpr index_t key_tile = blocked::ordered_key_block;
static_assert(key_tile % pair_terms == 0 && key_tile % tile_rows == 0);

// Hands out consecutive buffers of one worker's workspace; a null base only counts elements.
template <class M>
class Slices {
 public:
  explicit Slices(M* base) : base_(base) {}
  M* take(index_t n) {
    M* piece = base_ == nullptr ? nullptr : base_ + used_;
    used_ += round_up(n, vector_width<M>);
    return piece;
  }
  index_t used() const { return used_; }

 private:
  M* base_;
  index_t used_ = 0;
};

// Padded extents of one head in the workspace.
template <class M>
struct Extents {
  explicit Extents(const AttentionShape& s)
      : width(round_up(s.head_dim, vector_width<M>)), keys(round_up(s.key_length, key_tile)) {}
  index_t width;  // head_dim, padded with zeros
  index_t keys;   // key_length, padded with zeros
};

template <class M>
struct ForwardBuffers {
  ForwardBuffers(Slices<M> s, const Extents<M>& e, index_t query_tile)
      : key_t(s.take(e.width * e.keys)),
        value(s.take(e.keys * e.width)),
        query(s.take(query_tile * e.width)),
        out(s.take(query_tile * e.width)),
        scores(s.take(query_tile * key_tile)),
        max(s.take(query_tile)),
        sum(s.take(query_tile)),
        size(s.used()) {}
  M *key_t, *value, *query, *out, *scores, *max, *sum;
  index_t size;
};

template <class M>
struct BackwardBuffers {
  BackwardBuffers(Slices<M> s, const Extents<M>& e, const AttentionShape& shape, index_t query_tile)
      : key(s.take(e.keys * e.width)),
        key_t(s.take(e.keys * e.width)),
        value_t(s.take(e.keys * e.width)),
        dkey(s.take(e.keys * e.width)),
        dvalue(s.take(e.keys * e.width)),
        query(s.take(query_tile * e.width)),
        dout(s.take(query_tile * e.width)),
        dquery(s.take(query_tile * e.width)),
        p(s.take(query_tile * key_tile)),
        ds(s.take(query_tile * key_tile)),
        dot(s.take(query_tile)),
        all_dkey(shape.query_heads > shape.key_heads ? s.take(e.keys * e.width) : nullptr),
        all_dvalue(shape.query_heads > shape.key_heads ? s.take(e.keys * e.width) : nullptr),
        size(s.used()) {}
  M *key, *key_t, *value_t, *dkey, *dvalue, *query, *dout, *dquery, *p, *ds, *dot;
  M *all_dkey, *all_dvalue;  // the sums over the query heads of a key head, where there are several
  index_t size;
};

// to (padded_rows, width) = factor * from, zeros outside.
template <class T, class M>
void load(MatrixRef<const T> from, M factor, index_t padded_rows, index_t width, M* to) {
  for (index_t r = 0; r < from.rows; ++r) {
    const T* const source = from.data + r * from.leading;
    M* const target = to + r * width;
    HostRow{}.for_each(from.columns, [=](index_t c) { target[c] = factor * static_cast<M>(source[c]); });
    for (index_t c = from.columns; c < width; ++c) target[c] = 0;
  }
  std::fill(to + from.rows * width, to + padded_rows * width, M(0));
}

// to (columns of from, leading) = transpose of from, zeros in the padding.
template <class T, class M>
void load_transposed(MatrixRef<const T> from, index_t leading, M* to) {
  constexpr index_t block = 16;
  for (index_t c = 0; c < from.columns; ++c) std::fill(to + c * leading + from.rows, to + (c + 1) * leading, M(0));
  for (index_t r0 = 0; r0 < from.rows; r0 += block) {
    const index_t count = std::min(block, from.rows - r0);
    for (index_t c = 0; c < from.columns; ++c) {
      const T* const source = from.data + r0 * from.leading + c;
      M* const target = to + c * leading + r0;
      for (index_t r = 0; r < count; ++r) target[r] = static_cast<M>(source[r * from.leading]);
    }
  }
}

template <class T, class M>
void store(const M* from, index_t width, M factor, MatrixRef<T> to) {
  for (index_t r = 0; r < to.rows; ++r) store_row(from + r * width, to.columns, factor, to.data + r * to.leading);
}

// One tile of queries (already loaded) against all keys they attend to.
template <class Rule, class M>
void forward_tile(const AttentionShape& s, M scale, const ForwardBuffers<M>& w, const Extents<M>& e, index_t sequence,
                  index_t head, index_t first, index_t queries) {
  using Sums = typename Rule::Sums;
  const Range met = keys_met(s, sequence, first, queries, key_tile);
  const index_t rows = round_up(queries, tile_rows);
  const M of_softmax = s.scores.is_scale() ? scale : M(1);
  std::fill(w.out, w.out + rows * e.width, M(0));
  std::fill(w.max, w.max + queries, std::numeric_limits<M>::lowest());
  std::fill(w.sum, w.sum + queries, M(0));
  for (index_t j = met.begin; j < met.end; j += key_tile) {
    const index_t keys = std::min(key_tile, met.end - j);
    const index_t padded = round_up(keys, vector_width<M>);
    Sums::multiply(rows, padded, s.head_dim, {w.query, e.width, 1}, w.key_t + j, e.keys, w.scores, key_tile);
    if (!s.scores.is_scale()) {
      map_scores(s, head, scale, {w.scores, key_tile, queries, keys, first, j});
    }
    for (index_t r = 0; r < queries; ++r) {
      softmax_step<typename Rule::P>(w.scores + r * key_tile, of_softmax, s.keys_of(sequence, first + r, j, keys),
                                     padded, w.max[r], w.sum[r], w.out + r * e.width, e.width);
    }
    if (s.mask.is_on()) mask_tile(s, {sequence, head, first, j, queries, keys}, M(1), w.scores, key_tile);
    Sums::add(rows, e.width, keys, {w.scores, key_tile, 1}, w.value + j * e.width, e.width, w.out, e.width);
  }
}

template <class Rule, class T>
void forward_head(const AttentionShape& s, index_t sequence, index_t key_head, MatrixRef<const T> q,
                  MatrixRef<const T> k, MatrixRef<const T> v, MatrixRef<T> out, master_t<T>* lse, master_t<T>* memory) {
  using M = master_t<T>;
  const Extents<M> e(s);
  constexpr index_t query_tile = Rule::Sums::query_tile;
  const ForwardBuffers<M> w(Slices<M>(memory), e, query_tile);
  const index_t d = s.head_dim;
  const auto head_of = [&](auto x, index_t head, index_t row, index_t rows) {
    return x.column_block(head * d, d).row_block(row, rows);
  };
  const index_t key_row = sequence * s.key_row_stride();
  load_transposed(head_of(k, key_head, key_row, s.key_length), e.keys, w.key_t);
  load(head_of(v, key_head, key_row, s.key_length), M(1), e.keys, e.width, w.value);
  const M scale = scale_of<M>(s);
  const M kept = static_cast<M>(s.mask.factor());
  for (index_t head = 0; head < s.query_heads; ++head) {
    if (s.key_head_of(head) != key_head) continue;
    for (index_t first = 0; first < s.query_length; first += query_tile) {
      const index_t queries = std::min(query_tile, s.query_length - first);
      const index_t row = sequence * s.query_row_stride() + first;
      load(head_of(q, head, row, queries), M(1), query_tile, e.width, w.query);
      forward_tile<Rule>(s, scale, w, e, sequence, head, first, queries);
      M* const lse_rows = lse + (sequence * s.query_heads + head) * s.query_row_stride() + first;
      for (index_t r = 0; r < queries; ++r) {
        const bool sees = w.sum[r] > 0;
        store(w.out + r * e.width, e.width, sees ? kept / w.sum[r] : M(0), head_of(out, head, row + r, 1));
        lse_rows[r] = sees ? w.max[r] + logarithm(w.sum[r]) : std::numeric_limits<M>::lowest();
      }
    }
  }
}

// p and ds of one tile, rounded to P: on entry p holds scores / scale and ds holds dp.
template <class P, class M>
void backward_softmax(const AttentionShape& s, M scale, const BackwardBuffers<M>& w, const M* lse, index_t sequence,
                      index_t first, index_t queries, Range tile, index_t padded) {
  const HostRow row;
  for (index_t r = 0; r < queries; ++r) {
    M* const p = w.p + r * key_tile;
    M* const ds = w.ds + r * key_tile;
    const M log_sum = lse[r];
    const M dot = w.dot[r];
    const Range seen = s.keys_of(sequence, first + r, tile.begin, tile.size());
    M* const seen_p = p + seen.begin;
    M* const seen_ds = ds + seen.begin;
    row.for_each(seen.size(), [=](index_t c) {
      const ScoreGradient<M> of = gradient_of_score<P>(seen_p[c], scale, log_sum, seen_ds[c], dot);
      seen_p[c] = of.p;
      seen_ds[c] = of.ds;
    });
    for (index_t c = 0; c < seen.begin; ++c) p[c] = ds[c] = 0;
    for (index_t c = seen.end; c < padded; ++c) p[c] = ds[c] = 0;
  }
}

template <class Rule, class M>
void backward_tile(const AttentionShape& s, M scale, const BackwardBuffers<M>& w, const Extents<M>& e, const M* lse,
                   index_t sequence, index_t head, index_t first, index_t queries) {
  using Sums = typename Rule::Sums;
  const Range met = keys_met(s, sequence, first, queries, key_tile);
  const index_t rows = round_up(queries, tile_rows);
  std::fill(w.dquery, w.dquery + rows * e.width, M(0));
  for (index_t j = met.begin; j < met.end; j += key_tile) {
    const index_t keys = std::min(key_tile, met.end - j);
    const index_t key_rows = round_up(keys, tile_rows);
    const index_t padded = std::min(key_tile, round_up(key_rows, vector_width<M>));
    Sums::multiply(rows, padded, s.head_dim, {w.query, e.width, 1}, w.key_t + j, e.keys, w.p, key_tile);
    Sums::multiply(rows, padded, s.head_dim, {w.dout, e.width, 1}, w.value_t + j, e.keys, w.ds, key_tile);
    raise_maxima(s, sequence, head, scale, {w.p, key_tile, queries, keys, first, j});
    const MaskedTile tile{sequence, head, first, j, queries, keys};
    if (s.mask.is_on()) mask_tile(s, tile, static_cast<M>(s.mask.factor()), w.ds, key_tile);
    if (!s.scores.is_scale()) {
      map_scores_and_gradient(s, head, scale, {w.p, key_tile, queries, keys, first, j}, w.ds, w.dot);
    }
    backward_softmax<typename Rule::P>(s, s.scores.is_scale() ? scale : M(1), w, lse, sequence, first, queries,
                                       {j, j + keys}, padded);
    if (s.mask.is_on()) mask_tile(s, tile, M(1), w.p, key_tile);
    Sums::add(key_rows, e.width, queries, {w.p, 1, key_tile}, w.dout, e.width, w.dvalue + j * e.width, e.width);
    Sums::add(key_rows, e.width, queries, {w.ds, 1, key_tile}, w.query, e.width, w.dkey + j * e.width, e.width);
    Sums::add(rows, e.width, keys, {w.ds, key_tile, 1}, w.key + j * e.width, e.width, w.dquery, e.width);
  }
}

template <class Rule, class T>
void backward_head(const AttentionShape& s, index_t sequence, index_t key_head, const AttentionGradients<T>& t,
                   master_t<T>* memory) {
  using M = master_t<T>;
  const Extents<M> e(s);
  constexpr index_t query_tile = Rule::Sums::query_tile;
  const BackwardBuffers<M> w(Slices<M>(memory), e, s, query_tile);
  const index_t d = s.head_dim;
  const auto head_of = [&](auto x, index_t head, index_t row, index_t rows) {
    return x.column_block(head * d, d).row_block(row, rows);
  };
  const index_t key_row = sequence * s.key_row_stride();
  const auto key = head_of(t.k, key_head, key_row, s.key_length);
  load(key, M(1), e.keys, e.width, w.key);
  load_transposed(key, e.keys, w.key_t);
  load_transposed(head_of(t.v, key_head, key_row, s.key_length), e.keys, w.value_t);
  const index_t all = e.keys * e.width;
  bool is_first = true;
  const M scale = scale_of<M>(s);
  for (index_t head = 0; head < s.query_heads; ++head) {
    if (s.key_head_of(head) != key_head) continue;
    std::fill(w.dkey, w.dkey + all, M(0));
    std::fill(w.dvalue, w.dvalue + all, M(0));
    for (index_t first = 0; first < s.query_length; first += query_tile) {
      const index_t queries = std::min(query_tile, s.query_length - first);
      const index_t row = sequence * s.query_row_stride() + first;
      const auto out = head_of(t.out, head, row, queries);
      load(head_of(t.q, head, row, queries), M(1), query_tile, e.width, w.query);
      load(head_of(t.dout, head, row, queries), M(1), query_tile, e.width, w.dout);
      for (index_t r = 0; r < queries; ++r) {
        w.dot[r] = row_product<M>(d, w.dout + r * e.width, out.data + r * out.leading);
      }
      const M* const lse = t.lse.data() + (sequence * s.query_heads + head) * s.query_row_stride() + first;
      backward_tile<Rule>(s, scale, w, e, lse, sequence, head, first, queries);
      store(w.dquery, e.width, scale, head_of(t.dq, head, row, queries));
    }
    add_head(is_first, all, w.dkey, w.all_dkey);
    add_head(is_first, all, w.dvalue, w.all_dvalue);
    is_first = false;
  }
  const bool has_groups = w.all_dkey != nullptr;
  store(has_groups ? w.all_dkey : w.dkey, e.width, scale, head_of(t.dk, key_head, key_row, s.key_length));
  store(has_groups ? w.all_dvalue : w.dvalue, e.width, static_cast<M>(s.mask.factor()),
        head_of(t.dv, key_head, key_row, s.key_length));
}

template <class T>
std::size_t worker_bytes(const AttentionShape& shape) {
  using M = master_t<T>;
  const Extents<M> e(shape);
  const index_t queries = std::max(Ordinary<T>::Sums::query_tile, InOrder<T>::Sums::query_tile);
  const index_t elements = std::max(ForwardBuffers<M>(Slices<M>(nullptr), e, queries).size,
                                    BackwardBuffers<M>(Slices<M>(nullptr), e, shape, queries).size);
  const std::size_t bytes = static_cast<std::size_t>(elements) * sizeof(M);
  return std::is_same_v<T, bf16> ? std::max(bytes, bf16_tiles::attention_bytes(shape)) : bytes;
}

// work(sequence, key_head, memory) for every pair; memory is the worker's slice of the workspace.
template <class T, class F>
void for_each_key_head(const Device& device, const char* label, const AttentionShape& s, Vector<std::byte> workspace,
                       const F& work) {
  const index_t workers = ExecutionSpace().concurrency();
  const index_t heads = s.batch * s.key_heads;
  std::byte* const memory = workspace.data();
  const std::size_t slice = worker_bytes<T>(s);
  Kokkos::parallel_for(kept_label<F>(label), RangePolicy(device.exec(), 0, workers), [=](const index_t worker) {
    for (index_t i = worker; i < heads; i += workers) {
      work(i / s.key_heads, i % s.key_heads, memory + static_cast<std::size_t>(worker) * slice);
    }
  });
}

}  // namespace

template <class T>
void run_forward(Device& device, fused::Library, const AttentionShape& shape, MatrixRef<const T> q,
                 MatrixRef<const T> k, MatrixRef<const T> v, MatrixRef<T> out, Vector<master_t<T>> lse,
                 Vector<std::byte> workspace) {
  using M = master_t<T>;
  M* const lse_data = lse.data();
  const GemmMode mode = device.gemm_mode();
  const auto head = [=](index_t sequence, index_t key_head, std::byte* memory) {
    if constexpr (std::is_same_v<T, bf16>) {
      if (bf16_tiles::attends(mode))
        return bf16_tiles::forward_head(mode, shape, sequence, key_head, q, k, v, out, lse_data, memory);
    }
    M* const buffers = reinterpret_cast<M*>(memory);
    if (mode == GemmMode::fixed_order)
      forward_head<InOrder<T>, T>(shape, sequence, key_head, q, k, v, out, lse_data, buffers);
    else
      forward_head<Ordinary<T>, T>(shape, sequence, key_head, q, k, v, out, lse_data, buffers);
  };
  for_each_key_head<T>(device, "attention_forward", shape, workspace, head);
}

template <class T>
void run_backward(Device& device, fused::Library, const AttentionShape& shape, const AttentionGradients<T>& tensors,
                  Vector<std::byte> workspace) {
  using M = master_t<T>;
  const GemmMode mode = device.gemm_mode();
  const auto head = [=](index_t sequence, index_t key_head, std::byte* memory) {
    if constexpr (std::is_same_v<T, bf16>) {
      if (bf16_tiles::attends(mode)) return bf16_tiles::backward_head(mode, shape, sequence, key_head, tensors, memory);
    }
    M* const buffers = reinterpret_cast<M*>(memory);
    if (mode == GemmMode::fixed_order)
      backward_head<InOrder<T>, T>(shape, sequence, key_head, tensors, buffers);
    else
      backward_head<Ordinary<T>, T>(shape, sequence, key_head, tensors, buffers);
  };
  for_each_key_head<T>(device, "attention_backward", shape, workspace, head);
}

template <class T>
std::size_t workspace_bytes(const AttentionShape& shape) {
  return worker_bytes<T>(shape) * static_cast<std::size_t>(ExecutionSpace().concurrency());
}

fused::Available available(Device&) { return {.cudnn = false, .tensor_cores = false}; }

template <class T>
std::string library(Device& device, const AttentionShape&) {
  const bool has_tiles = std::is_same_v<T, bf16> && bf16_tiles::attends(device.gemm_mode());
  return has_tiles ? bf16_tiles::instructions() : "blocks in cache";
}

NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE_ATTENTION)

}  // namespace nanotron::kernels::detail
