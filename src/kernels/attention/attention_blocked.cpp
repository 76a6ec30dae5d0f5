#include "nanotron/kernels/attention/attention_gpu.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/attention/attention_blocks.hpp"
#include "kernels/attention/head_scores.hpp"
#include "nanotron/base/elementary/exponential.hpp"
#include "nanotron/base/elementary/logarithm.hpp"
#include "nanotron/kernels/gemm/gemm.hpp"
#include "nanotron/kernels/loop/loop.hpp"

// Kernels and batched GEMMs on one CUDA stream, without a fence; scores are stored in the workspace only.

namespace nanotron::kernels::blocked {
namespace {

template <class T>
void start_rows(Device& device, const Pieces<T>& w, index_t heads, index_t head_dim) {
  using M = master_t<T>;
  M *const rows = w.rows, *const max = w.max, *const sum = w.sum;
  const M lowest = std::numeric_limits<M>::lowest();
  const index_t sums = heads * query_block;
  const KernelWork kernel(device, "attention_start", {.written = bytes_of_rows<M>(sums, head_dim + 2)});
  for_each_element(
      device, "attention_start", sums * head_dim, KOKKOS_LAMBDA(const index_t i) {
        rows[i] = 0;
        if (i >= sums) return;
        max[i] = lowest;
        sum[i] = 0;
      });
}

template <class T>
void point_forward(Device& device, const Pieces<T>& w, const Heads& heads, const Block& b, MatrixRef<const T> q,
                   MatrixRef<const T> k, MatrixRef<const T> v) {
  auto *const input_a_at = w.input_a, *const input_b_at = w.input_b, *const input_c_at = w.input_c,
              *const rounded_at = w.rounded;
  auto *const output_a_at = w.output_a, *const output_b_at = w.output_b;
  auto *const scores_at = w.scores, *const rows_at = w.rows;
  auto* const p_at = w.p;
  const KernelWork kernel(device, "attention_pointers", {});
  for_each_element(
      device, "attention_pointers", heads.s.batch * heads.s.query_heads, KOKKOS_LAMBDA(const index_t n) {
        input_a_at[n] = heads.query(q, n, b.first_query);
        input_b_at[n] = heads.key(k, n, b.first_key);
        input_c_at[n] = heads.key(v, n, b.first_key);
        rounded_at[n] = p_at + n * score_elements;
        output_a_at[n] = scores_at + n * score_elements;
        output_b_at[n] = rows_at + n * query_block * heads.s.head_dim;
      });
}

// Products of one block (already times the scale) -> scores.
template <class T>
void map_block(Device& device, const Pieces<T>& w, const Heads& heads, const Block& b) {
  using M = master_t<T>;
  auto* const scores_at = w.scores;
  const index_t rows = heads.s.batch * heads.s.query_heads * b.queries;
  const KernelWork kernel(device, "attention_scores",
                          {.read = bytes_of_rows<M>(rows, b.keys), .written = bytes_of_rows<M>(rows, b.keys)});
  for_each_row(
      device, "attention_scores", rows, KOKKOS_LAMBDA(const Row& row, const index_t at) {
        const index_t n = at / b.queries, i = at % b.queries;
        M* const scores = scores_at + n * score_elements + i * key_block;
        const HeadScores<M> map(heads.s, heads.head(n), M(1));
        row.for_each(b.keys,
                     [=](const index_t j) { scores[j] = map.score(scores[j], b.first_query + i, b.first_key + j); });
      });
}

// The same, and dp as head_scores.hpp says.
template <class T>
void map_gradient_block(Device& device, const Pieces<T>& w, const Heads& heads, const Block& b) {
  using M = master_t<T>;
  auto *const scores_at = w.scores, *const dp_at = w.dp, *const dot_at = w.dot;
  const index_t rows = heads.s.batch * heads.s.query_heads * b.queries;
  const KernelWork kernel(device, "attention_scores_gradient",
                          {.read = bytes_of_rows<M>(rows, 2 * b.keys), .written = bytes_of_rows<M>(rows, 2 * b.keys)});
  for_each_row(
      device, "attention_scores_gradient", rows, KOKKOS_LAMBDA(const Row& row, const index_t at) {
        const index_t n = at / b.queries, i = at % b.queries, first = n * score_elements + i * key_block;
        M *const scores = scores_at + first, *const dp = dp_at + first;
        const M dot = dot_at[n * heads.s.query_length + b.first_query + i];
        const HeadScores<M> map(heads.s, heads.head(n), M(1));
        row.for_each(b.keys, [=](const index_t j) {
          dp[j] = (dp[j] - dot) * map.rise(scores[j]) + dot;
          scores[j] = map.score(scores[j], b.first_query + i, b.first_key + j);
        });
      });
}

// Online softmax of one block: p = exp(score - max); sum and output rows are rescaled to the new max.
template <class T>
void softmax_block(Device& device, const Pieces<T>& w, const Heads& heads, const Block& b) {
  using M = master_t<T>;
  auto *const scores_at = w.scores, *const rows_at = w.rows, *const max_at = w.max, *const sum_at = w.sum;
  auto* const p_at = w.p;
  const index_t width = heads.s.head_dim, rows = heads.s.batch * heads.s.query_heads * b.queries;
  const KernelWork kernel(device, "attention_softmax",
                          {.read = bytes_of_rows<M>(rows, b.keys + width),
                           .written = bytes_of_rows<T>(rows, b.keys) + bytes_of_rows<M>(rows, width)});
  for_each_row(
      device, "attention_softmax", rows, KOKKOS_LAMBDA(const Row& row, const index_t at) {
        const index_t n = at / b.queries, i = at % b.queries;
        const M* const scores = scores_at + n * score_elements + i * key_block;
        T* const p = p_at + n * score_elements + i * key_block;
        M* const out = rows_at + (n * query_block + i) * width;
        const Range seen = heads.seen(b, n, i);
        const index_t stat = n * query_block + i, count = seen.end - seen.begin;
        const M* const first = scores + seen.begin;
        const M before = max_at[stat];
        const M old_sum = sum_at[stat];
        const M top = row.template max<M>(count, before, [=](const index_t j) { return first[j]; });
        const M added = row.template sum<M>(count, [=](const index_t j) { return exponential(first[j] - top); });
        row.for_each(b.keys, [=](const index_t j) {
          const bool sees = j >= seen.begin && j < seen.end;
          p[j] = sees ? static_cast<T>(exponential(scores[j] - top)) : T(0.0f);
        });
        const M shrink = exponential(before - top);
        row.for_each(width, [=](const index_t c) { out[c] *= shrink; });
        max_at[stat] = top;
        sum_at[stat] = old_sum * shrink + added;
      });
}

// x <- factor x where the mask keeps it, else 0; x: p or dp of one block.
template <class E>
void mask_block(Device& device, const Heads& heads, const Block& b, double factor, E* x) {
  const index_t rows = heads.s.batch * heads.s.query_heads * b.queries;
  const auto m = static_cast<master_t<E>>(factor);
  const KernelWork kernel(device, "attention_mask",
                          {.read = bytes_of_rows<E>(rows, b.keys), .written = bytes_of_rows<E>(rows, b.keys)});
  for_each_row(
      device, "attention_mask", rows, KOKKOS_LAMBDA(const Row& row, const index_t at) {
        const index_t n = at / b.queries, i = at % b.queries;
        const AttentionShape& s = heads.s;
        const RandomMask mask = s.mask;
        const MaskRow kept =
            mask.row(heads.sequence(n), s.query_position + b.first_query + i, s.first_query_head + heads.head(n));
        const index_t key = s.key_position + b.first_key;
        E* const to = x + n * score_elements + i * key_block;
        row.for_each(b.keys,
                     [=](const index_t j) { to[j] = mask.keeps(kept, key + j) ? static_cast<E>(m * to[j]) : E(0.0f); });
      });
}

template <class T>
void store_rows(Device& device, const Pieces<T>& w, const Heads& heads, index_t first, index_t queries,
                MatrixRef<T> out, Vector<master_t<T>> lse) {
  using M = master_t<T>;
  const M *const sums = w.sum, *const maxima = w.max, *const output = w.rows;
  M* const lse_data = lse.data();
  const M kept = static_cast<M>(heads.s.mask.factor());
  const index_t rows = heads.s.batch * heads.s.query_heads * queries;
  const KernelWork kernel(device, "attention_store",
                          {.read = bytes_of_rows<M>(rows, heads.s.head_dim),
                           .written = bytes_of_rows<T>(rows, heads.s.head_dim) + bytes_of_rows<M>(rows, 1)});
  for_each_row(
      device, "attention_store", rows, KOKKOS_LAMBDA(const Row& row, const index_t at) {
        const index_t n = at / queries, i = at % queries;
        const M* const from = output + (n * query_block + i) * heads.s.head_dim;
        T* const to = heads.query(out, n, first + i);
        const M sum = sums[n * query_block + i];
        const bool sees = sum > 0;
        const M factor = sees ? kept / sum : M(0);
        row.for_each(heads.s.head_dim, [=](const index_t c) { to[c] = static_cast<T>(factor * from[c]); });
        lse_data[n * heads.s.query_row_stride() + first + i] =
            maxima[n * query_block + i] + (sees ? logarithm(sum) : M(0));
      });
}

// dot_i = do_i . o_i; dkey = dvalue = 0.
template <class T>
void start_backward(Device& device, const Pieces<T>& w, const Heads& heads, MatrixRef<const T> out,
                    MatrixRef<const T> dout) {
  using M = master_t<T>;
  M *const dot = w.dot, *const dkey = w.dkey, *const dvalue = w.dvalue;
  const index_t count = heads.s.batch * heads.s.query_heads, width = heads.s.head_dim;
  const KernelWork kernel(device, "attention_dot",
                          {.read = bytes_of_rows<T>(count * heads.s.query_length, 2 * width),
                           .written = bytes_of_rows<M>(count * heads.s.query_length, 1) +
                                      bytes_of_rows<M>(count * heads.s.key_length, 2 * width)});
  for_each_row(
      device, "attention_dot", count * heads.s.query_length, KOKKOS_LAMBDA(const Row& row, const index_t at) {
        const index_t n = at / heads.s.query_length, i = at % heads.s.query_length;
        const T *const a = heads.query(out, n, i), *const b = heads.query(dout, n, i);
        dot[at] =
            row.template sum<M>(width, [=](const index_t c) { return static_cast<M>(a[c]) * static_cast<M>(b[c]); });
      });
  for_each_element(
      device, "attention_start_keys", count * heads.s.key_length * width,
      KOKKOS_LAMBDA(const index_t i) { dkey[i] = dvalue[i] = 0; });
}

// p and ds of one block from scores and dp.
template <class T>
void gradient_block(Device& device, const Pieces<T>& w, const Heads& heads, const Block& b,
                    Vector<const master_t<T>> lse) {
  using M = master_t<T>;
  const M *const all_scores = w.scores, *const all_dp = w.dp, *const dots = w.dot;
  T *const all_p = w.p, *const all_ds = w.ds;
  const index_t rows = heads.s.batch * heads.s.query_heads * b.queries;
  const KernelWork kernel(device, "attention_gradient",
                          {.read = bytes_of_rows<M>(rows, 2 * b.keys), .written = bytes_of_rows<T>(rows, 2 * b.keys)});
  for_each_row(
      device, "attention_gradient", rows, KOKKOS_LAMBDA(const Row& row, const index_t at) {
        const index_t n = at / b.queries, i = at % b.queries;
        const index_t first = n * score_elements + i * key_block;
        const Range seen = heads.seen(b, n, i);
        const M *const scores = all_scores + first, *const dp = all_dp + first;
        T *const p = all_p + first, *const ds = all_ds + first;
        const index_t query = b.first_query + i;
        const M log_sum = lse.data()[n * heads.s.query_row_stride() + query];
        const M dot = dots[n * heads.s.query_length + query];
        row.for_each(b.keys, [=](const index_t j) {
          const bool sees = j >= seen.begin && j < seen.end;
          const M value = sees ? exponential(scores[j] - log_sum) : M(0);
          p[j] = static_cast<T>(value);
          ds[j] = static_cast<T>(sees ? value * (dp[j] - dot) : M(0));
        });
      });
}

// The GEMMs of one block's backward, after gradient_block: dv, dk, dq.
template <class T>
void accumulate_block(Device& device, const Pieces<T>& w, const Heads& heads, const Block& b,
                      const BackwardTensors<T>& t) {
  using M = master_t<T>;
  auto *const input_a_at = w.input_a, *const input_b_at = w.input_b, *const input_c_at = w.input_c,
              *const rounded_at = w.rounded;
  auto *const output_a_at = w.output_a, *const output_b_at = w.output_b, *const output_c_at = w.output_c;
  auto *const dvalue_at = w.dvalue, *const dkey_at = w.dkey, *const rows_at = w.rows;
  auto *const p_at = w.p, *const ds_at = w.ds;
  const index_t count = heads.s.batch * heads.s.query_heads, d = heads.s.head_dim;
  const MatrixRef<const T> q = t.q, k = t.k, dout = t.dout;
  const KernelWork kernel(device, "attention_pointers", {});
  for_each_element(
      device, "attention_pointers", count, KOKKOS_LAMBDA(const index_t n) {
        input_a_at[n] = heads.query(q, n, b.first_query);
        input_b_at[n] = heads.query(dout, n, b.first_query);
        input_c_at[n] = heads.key(k, n, b.first_key);
        rounded_at[n] = p_at + n * score_elements;
        output_a_at[n] = dvalue_at + (n * heads.s.key_length + b.first_key) * heads.s.head_dim;
        output_b_at[n] = dkey_at + (n * heads.s.key_length + b.first_key) * heads.s.head_dim;
        output_c_at[n] = rows_at + n * query_block * heads.s.head_dim;
      });
  const std::size_t alignment = alignment_of<T>(heads.s, w, {t.q, t.k, t.dout});
  BatchedShape by_key{.op_a = Op::transpose,
                      .m = b.keys,
                      .n = d,
                      .k = b.queries,
                      .leading_a = key_block,
                      .leading_b = t.dout.leading,
                      .leading_c = d,
                      .beta = 1,
                      .alignment = alignment};
  gemm_batched<T, M>(device, by_key, w.rounded, w.input_b, w.output_a, count);
  for_each_element(
      device, "attention_pointers_ds", count,
      KOKKOS_LAMBDA(const index_t n) { rounded_at[n] = ds_at + n * score_elements; });
  by_key.leading_b = t.q.leading;
  gemm_batched<T, M>(device, by_key, w.rounded, w.input_a, w.output_b, count);
  const BatchedShape by_query = query_rows_shape(b, d, t.k.leading, alignment);
  gemm_batched<T, M>(device, by_query, w.rounded, w.input_c, w.output_c, count);
}

template <class T>
void store_queries(Device& device, const Pieces<T>& w, const Heads& heads, index_t first, index_t queries, double scale,
                   MatrixRef<T> dq) {
  using M = master_t<T>;
  const M factor = static_cast<M>(scale);
  const M* const output = w.rows;
  const index_t rows = heads.s.batch * heads.s.query_heads * queries;
  const KernelWork kernel(
      device, "attention_store_dq",
      {.read = bytes_of_rows<M>(rows, heads.s.head_dim), .written = bytes_of_rows<T>(rows, heads.s.head_dim)});
  for_each_row(
      device, "attention_store_dq", rows, KOKKOS_LAMBDA(const Row& row, const index_t at) {
        const index_t n = at / queries, i = at % queries;
        const M* const from = output + (n * query_block + i) * heads.s.head_dim;
        T* const to = heads.query(dq, n, first + i);
        row.for_each(heads.s.head_dim, [=](const index_t c) { to[c] = static_cast<T>(factor * from[c]); });
      });
}

// dk and dv of each key head: the sums over its query heads, in order.
template <class T>
void store_keys(Device& device, const Pieces<T>& w, const AttentionShape& shape, double scale, MatrixRef<T> dk,
                MatrixRef<T> dv) {
  using M = master_t<T>;
  const M factor = static_cast<M>(scale);
  const M *const dkey = w.dkey, *const dvalue = w.dvalue;
  const auto s = shape;
  const M kept = static_cast<M>(s.mask.factor());
  const KernelWork kernel(device, "attention_store_keys",
                          {.read = bytes_of_rows<M>(s.batch * s.query_heads * s.key_length, 2 * s.head_dim),
                           .written = bytes_of_rows<T>(s.batch * s.key_heads * s.key_length, 2 * s.head_dim)});
  for_each_row(
      device, "attention_store_keys", s.batch * s.key_heads * s.key_length,
      KOKKOS_LAMBDA(const Row& row, const index_t at) {
        const index_t j = at % s.key_length, key_head = at / s.key_length % s.key_heads;
        const index_t sequence = at / s.key_length / s.key_heads;
        const index_t target = sequence * s.key_row_stride() + j, column = key_head * s.head_dim;
        row.for_each(s.head_dim, [=](const index_t c) {
          M key = 0, value = 0;
          for (index_t h = 0; h < s.query_heads; ++h) {
            if (s.key_head_of(h) != key_head) continue;
            const index_t from = ((sequence * s.query_heads + h) * s.key_length + j) * s.head_dim + c;
            key += dkey[from];
            value += dvalue[from];
          }
          dk(target, column + c) = static_cast<T>(factor * key);
          dv(target, column + c) = static_cast<T>(kept * value);
        });
      });
}

}  // namespace

template <class T>
void attention_forward(Device& device, const AttentionShape& s, MatrixRef<const T> q, MatrixRef<const T> k,
                       MatrixRef<const T> v, MatrixRef<T> out, Vector<master_t<T>> lse, Vector<std::byte> workspace) {
  using M = master_t<T>;
  const Pieces<T> w(workspace.data(), s, false);
  const Heads heads{s};
  const index_t count = s.batch * s.query_heads, d = s.head_dim;
  const std::size_t alignment = alignment_of<T>(s, w, {q, k, v});
  const double scale = s.scores.scale_or(1.0 / std::sqrt(static_cast<double>(d)));
  for (index_t first = 0; first < s.query_length; first += query_block) {
    const index_t queries = std::min(query_block, s.query_length - first);
    start_rows(device, w, count, d);
    for_each_block(device, s, first, queries, [&](const Block& b) {
      point_forward(device, w, heads, b, q, k, v);
      const BatchedShape by_key = scores_shape(b, d, q.leading, k.leading, scale, alignment);
      gemm_batched<T, M>(device, by_key, w.input_a, w.input_b, w.output_a, count);
      if (!s.scores.is_scale()) map_block(device, w, heads, b);
      softmax_block(device, w, heads, b);
      if (s.mask.is_on()) mask_block(device, heads, b, 1.0, w.p);
      const BatchedShape by_query = query_rows_shape(b, d, v.leading, alignment);
      gemm_batched<T, M>(device, by_query, w.rounded, w.input_c, w.output_b, count);
    });
    store_rows(device, w, heads, first, queries, out, lse);
  }
}

template <class T>
void attention_backward(Device& device, const AttentionShape& s, const BackwardTensors<T>& t,
                        Vector<std::byte> workspace) {
  using M = master_t<T>;
  const Pieces<T> w(workspace.data(), s, true);
  const Heads heads{s};
  const index_t count = s.batch * s.query_heads, d = s.head_dim;
  const std::size_t alignment = alignment_of<T>(s, w, {t.q, t.k, t.v, t.dout});
  const double scale = s.scores.scale_or(1.0 / std::sqrt(static_cast<double>(d)));
  start_backward(device, w, heads, t.out, t.dout);
  for (index_t first = 0; first < s.query_length; first += query_block) {
    const index_t queries = std::min(query_block, s.query_length - first);
    start_rows(device, w, count, d);
    for_each_block(device, s, first, queries, [&](const Block& b) {
      const BatchedShape by_key = scores_shape(b, d, t.q.leading, t.k.leading, scale, alignment);
      point_forward(device, w, heads, b, t.q, t.k, t.v);
      gemm_batched<T, M>(device, by_key, w.input_a, w.input_b, w.output_a, count);
      const MatrixRef<const T> dout = t.dout;
      const KernelWork kernel(device, "attention_pointers", {});
      for_each_element(
          device, "attention_pointers_dp", count, KOKKOS_LAMBDA(const index_t n) {
            w.input_a[n] = heads.query(dout, n, b.first_query);
            w.output_a[n] = w.dp + n * score_elements;
          });
      const BatchedShape of_dp = scores_shape(b, d, t.dout.leading, t.v.leading, 1, alignment);
      gemm_batched<T, M>(device, of_dp, w.input_a, w.input_c, w.output_a, count);
      if (s.mask.is_on()) mask_block(device, heads, b, s.mask.factor(), w.dp);
      if (!s.scores.is_scale()) map_gradient_block(device, w, heads, b);
      gradient_block(device, w, heads, b, t.lse);
      if (s.mask.is_on()) mask_block(device, heads, b, 1.0, w.p);
      accumulate_block(device, w, heads, b, t);
    });
    store_queries(device, w, heads, first, queries, scale, t.dq);
  }
  store_keys(device, w, s, scale, t.dk, t.dv);
}

template <class T>
std::size_t attention_workspace_bytes(const AttentionShape& s) {
  return Pieces<T>(nullptr, s, true).bytes;
}

#define NANOTRON_INSTANTIATE(T)                                                                                      \
  template void attention_forward<T>(Device&, const AttentionShape&, MatrixRef<const T>, MatrixRef<const T>,         \
                                     MatrixRef<const T>, MatrixRef<T>, Vector<master_t<T>>, Vector<std::byte>);      \
  template void attention_backward<T>(Device&, const AttentionShape&, const BackwardTensors<T>&, Vector<std::byte>); \
  template std::size_t attention_workspace_bytes<T>(const AttentionShape&);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::kernels::blocked
