#include "nanotron/kernels/attention/score_maxima.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/attention/attention_blocks.hpp"
#include "nanotron/kernels/loop/loop.hpp"

namespace nanotron::kernels::blocked {
namespace {

// The max of each query's x, over its keys so far.
template <class T>
void start_queries(Device& device, const Pieces<T>& w, index_t heads) {
  using M = master_t<T>;
  M* const max = w.max;
  const M lowest = std::numeric_limits<M>::lowest();
  const KernelWork kernel(device, "score_maxima_start", {.written = bytes_of_rows<M>(heads * query_block, 1)});
  for_each_element(
      device, "score_maxima_start", heads * query_block, KOKKOS_LAMBDA(const index_t i) { max[i] = lowest; });
}

template <class T>
void point(Device& device, const Pieces<T>& w, const Heads& heads, const Block& b, MatrixRef<const T> q,
           MatrixRef<const T> k) {
  auto *const input_a_at = w.input_a, *const input_b_at = w.input_b;
  auto* const output_a_at = w.output_a;
  auto* const scores_at = w.scores;
  const KernelWork kernel(device, "score_maxima_pointers", {});
  for_each_element(
      device, "score_maxima_pointers", heads.s.batch * heads.s.query_heads, KOKKOS_LAMBDA(const index_t n) {
        input_a_at[n] = heads.query(q, n, b.first_query);
        input_b_at[n] = heads.key(k, n, b.first_key);
        output_a_at[n] = scores_at + n * score_elements;
      });
}

template <class T>
void raise_queries(Device& device, const Pieces<T>& w, const Heads& heads, const Block& b) {
  using M = master_t<T>;
  const M* const scores_at = w.scores;
  M* const max_at = w.max;
  const index_t rows = heads.s.batch * heads.s.query_heads * b.queries;
  const KernelWork kernel(device, "score_maxima_queries",
                          {.read = bytes_of_rows<M>(rows, b.keys), .written = bytes_of_rows<M>(rows, 1)});
  for_each_row(
      device, "score_maxima_queries", rows, KOKKOS_LAMBDA(const Row& row, const index_t at) {
        const index_t n = at / b.queries, i = at % b.queries;
        const Range seen = heads.seen(b, n, i);
        const M* const first = scores_at + n * score_elements + i * key_block + seen.begin;
        M* const max = max_at + n * query_block + i;
        const M top = row.template max<M>(seen.end - seen.begin, *max, [=](const index_t j) { return first[j]; });
        row.barrier();
        row.for_each(1, [=](const index_t) { *max = top; });
      });
}

// Of the queries of a block, of all sequences.
template <class T>
void raise_heads(Device& device, const Pieces<T>& w, const Heads& heads, index_t queries) {
  using M = master_t<T>;
  const M* const max_at = w.max;
  double* const maxima = heads.s.scores.maxima.data;
  const index_t query_heads = heads.s.query_heads;
  const M lowest = std::numeric_limits<M>::lowest();
  const KernelWork kernel(device, "score_maxima_heads",
                          {.read = bytes_of_rows<M>(heads.s.batch * query_heads * queries, 1),
                           .written = bytes_of_rows<double>(query_heads, 1)});
  for_each_row(
      device, "score_maxima_heads", query_heads, KOKKOS_LAMBDA(const Row& row, const index_t head) {
        const M top = row.template max<M>(heads.s.batch * queries, lowest, [=](const index_t at) {
          return max_at[(at / queries * query_heads + head) * query_block + at % queries];
        });
        double* const max = maxima + heads.s.first_query_head + head;
        row.for_each(1, [=](const index_t) {
          if (*max < static_cast<double>(top)) *max = static_cast<double>(top);
        });
      });
}

}  // namespace

template <class T>
void raise_maxima(Device& device, const AttentionShape& s, MatrixRef<const T> q, MatrixRef<const T> k,
                  Vector<std::byte> workspace) {
  if (s.scores.maxima.heads == 0) return;
  const Region region(device.timers(), "score_maxima");
  const Pieces<T> w(workspace.data(), s, false);
  const Heads heads{s};
  const index_t count = s.batch * s.query_heads, d = s.head_dim;
  const std::size_t alignment = alignment_of<T>(s, w, {q, k});
  const double scale = s.scores.scale_or(1.0 / std::sqrt(static_cast<double>(d)));
  for (index_t first = 0; first < s.query_length; first += query_block) {
    const index_t queries = std::min(query_block, s.query_length - first);
    start_queries(device, w, count);
    for_each_block(device, s, first, queries, [&](const Block& b) {
      point(device, w, heads, b, q, k);
      const BatchedShape by_key = scores_shape(b, d, q.leading, k.leading, scale, alignment);
      gemm_batched<T, master_t<T>>(device, by_key, w.input_a, w.input_b, w.output_a, count);
      raise_queries(device, w, heads, b);
    });
    raise_heads(device, w, heads, queries);
  }
}

#define NANOTRON_INSTANTIATE(T)                                                                         \
  template void raise_maxima<T>(Device&, const AttentionShape&, MatrixRef<const T>, MatrixRef<const T>, \
                                Vector<std::byte>);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::kernels::blocked
