#pragma once

// Rows of the softmax of attention on a host, the same bits for each form of the GEMMs beside it.

#include <algorithm>
#include <cmath>

#include "nanotron/base/elementary/exponential.hpp"
#include "nanotron/kernels/attention/attention.hpp"
#include "nanotron/kernels/loop/host_row.hpp"

namespace nanotron::kernels {

/// The scale of scores, as all kernels round it.
template <class M>
M scale_of(const AttentionShape& s) {
  return static_cast<M>(s.scores.scale_or(1.0 / std::sqrt(static_cast<double>(s.head_dim))));
}

/// One step of the online softmax on a row of products, in place: exp(scale product - new max) for the keys in
/// `seen`, rounded to P, 0 for the others of `padded`. The row of outputs, `width` long, is rescaled to the new max.
template <class P, class M>
void softmax_step(M* scores, M scale, Range seen, index_t padded, M& max, M& sum, M* out, index_t width) {
  const HostRow row;
  M* const first = scores + seen.begin;
  const M top = row.max<M>(seen.size(), max, [=](index_t j) { return scale * first[j]; });
  row.for_each(seen.size(), [=](index_t j) { first[j] = exponential(scale * first[j] - top); });
  const M added = row.sum<M>(seen.size(), [=](index_t j) { return first[j]; });
  if constexpr (!std::is_same_v<P, M>) {
    row.for_each(seen.size(), [=](index_t j) { first[j] = static_cast<M>(static_cast<P>(first[j])); });
  }
  std::fill(scores, first, M(0));
  std::fill(scores + seen.end, scores + padded, M(0));
  if (top != max) {
    const M shrink = exponential(max - top);
    sum *= shrink;
    row.for_each(width, [=](index_t c) { out[c] *= shrink; });
    max = top;
  }
  sum += added;
}

/// A probability and the gradient of its score, rounded to P, from a product; dot: do . o of its query.
template <class M>
struct ScoreGradient {
  M p, ds;
};
template <class P, class M>
ScoreGradient<M> gradient_of_score(M product, M scale, M lse, M dp, M dot) {
  const M p = exponential(scale * product - lse);
  return {static_cast<M>(static_cast<P>(p)), static_cast<M>(static_cast<P>(p * (dp - dot)))};
}

/// do . o of a row of n elements, both widened to M.
template <class M, class A, class B>
M row_product(index_t n, const A* dout, const B* out) {
  return HostRow{}.sum<M>(n, [=](index_t c) { return static_cast<M>(dout[c]) * static_cast<M>(out[c]); });
}

/// to = factor from, rounded.
template <class T, class M>
void store_row(const M* from, index_t n, M factor, T* to) {
  HostRow{}.for_each(n, [=](index_t c) { to[c] = static_cast<T>(factor * from[c]); });
}

/// The gradient of a key, summed over query heads in order: to = or += from.
template <class M>
void add_head(bool is_first, index_t n, const M* from, M* to) {
  if (to == nullptr) return;
  HostRow{}.for_each(n, [=](index_t i) { to[i] = is_first ? from[i] : to[i] + from[i]; });
}

}  // namespace nanotron::kernels
