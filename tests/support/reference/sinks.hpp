#pragma once

// Reference implementation of attention with sinks (kernels/attention/sinks.hpp): another term of the softmax's
// denominator, see reference/gemm.hpp.

#include "support/reference/attention.hpp"

namespace nanotron::kernels::reference {

/// log(exp(lse) + exp(sink)).
inline double with_sink(double lse, double sink) {
  const double most = std::max(lse, sink);
  return most + std::log(std::exp(lse - most) + std::exp(sink - most));
}

template <class T>
void attention_with_sinks(const AttentionShape& s, MatrixRef<const T> q, MatrixRef<const T> k, MatrixRef<const T> v,
                          const double* sinks, MatrixRef<double> out, double* lse) {
  const index_t d = s.head_dim;
  for_each_query(s, q, k,
                 [&](index_t b, index_t h, index_t i, index_t row, index_t key_row, const std::vector<double>& p,
                     double log_sum, const std::vector<double>&) {
                   const double all = with_sink(log_sum, sinks[h]);
                   lse[(b * s.query_heads + h) * s.query_row_stride() + i] = all;
                   for (index_t c = 0; c < d; ++c) {
                     double sum = 0;
                     for (std::size_t j = 0; j < p.size(); ++j) {
                       sum += p[j] * std::exp(log_sum - all) *
                              static_cast<double>(v(key_row + static_cast<index_t>(j), s.key_head_of(h) * d + c));
                     }
                     out(row, h * d + c) = sum;
                   }
                 });
}

}  // namespace nanotron::kernels::reference
