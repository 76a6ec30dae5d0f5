#pragma once

// Reference implementations of kernels/attention, see reference/gemm.hpp. They hold one row of probabilities.

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "nanotron/kernels/attention/attention.hpp"

namespace nanotron::kernels::reference {

/// f(sequence, query head, query, query row, row of the first key it sees, probabilities of those it sees,
/// lse); the probabilities are empty for a query that sees no key.
template <class T, class F>
void for_each_query(const AttentionShape& s, MatrixRef<const T> q, MatrixRef<const T> k, const F& f) {
  const index_t d = s.head_dim;
  for (index_t b = 0; b < s.batch; ++b) {
    for (index_t h = 0; h < s.query_heads; ++h) {
      for (index_t i = 0; i < s.query_length; ++i) {
        const index_t row = b * s.query_row_stride() + i;
        const Range seen = s.keys_of(b, i);
        const index_t key_row = b * s.key_row_stride() + seen.begin;
        std::vector<double> p(static_cast<std::size_t>(seen.size()));
        double max = std::numeric_limits<double>::lowest();
        for (std::size_t j = 0; j < p.size(); ++j) {
          double dot = 0;
          for (index_t c = 0; c < d; ++c) {
            dot += static_cast<double>(q(row, h * d + c)) *
                   static_cast<double>(k(key_row + static_cast<index_t>(j), s.key_head_of(h) * d + c));
          }
          p[j] = dot / std::sqrt(static_cast<double>(d));
          max = std::max(max, p[j]);
        }
        double sum = 0;
        for (double& value : p) sum += value = std::exp(value - max);
        for (double& value : p) value /= sum;
        f(b, h, i, row, key_row, p, p.empty() ? max : max + std::log(sum));
      }
    }
  }
}

template <class T>
void attention_forward(const AttentionShape& s, MatrixRef<const T> q, MatrixRef<const T> k, MatrixRef<const T> v,
                       MatrixRef<double> out, double* lse) {
  const index_t d = s.head_dim;
  for_each_query(
      s, q, k,
      [&](index_t b, index_t h, index_t i, index_t row, index_t key_row, const std::vector<double>& p, double log_sum) {
        lse[(b * s.query_heads + h) * s.query_row_stride() + i] = log_sum;
        for (index_t c = 0; c < d; ++c) {
          double sum = 0;
          for (std::size_t j = 0; j < p.size(); ++j) {
            sum += p[j] * static_cast<double>(v(key_row + static_cast<index_t>(j), s.key_head_of(h) * d + c));
          }
          out(row, h * d + c) = sum;
        }
      });
}

/// dq, dk, dv are accumulated: hand in zeros.
template <class T>
void attention_backward(const AttentionShape& s, MatrixRef<const T> q, MatrixRef<const T> k, MatrixRef<const T> v,
                        MatrixRef<const T> dout, MatrixRef<double> dq, MatrixRef<double> dk, MatrixRef<double> dv) {
  const index_t d = s.head_dim;
  const double scale = 1.0 / std::sqrt(static_cast<double>(d));
  for_each_query(s, q, k,
                 [&](index_t, index_t h, index_t, index_t row, index_t key_row, const std::vector<double>& p, double) {
                   const index_t column = s.key_head_of(h) * d;
                   std::vector<double> dp(p.size(), 0.0);
                   double mean = 0;
                   for (std::size_t j = 0; j < p.size(); ++j) {
                     const index_t key = key_row + static_cast<index_t>(j);
                     for (index_t c = 0; c < d; ++c) {
                       dp[j] += static_cast<double>(dout(row, h * d + c)) * static_cast<double>(v(key, column + c));
                       dv(key, column + c) += p[j] * static_cast<double>(dout(row, h * d + c));
                     }
                     mean += p[j] * dp[j];
                   }
                   for (std::size_t j = 0; j < p.size(); ++j) {
                     const index_t key = key_row + static_cast<index_t>(j);
                     const double ds = p[j] * (dp[j] - mean) * scale;
                     for (index_t c = 0; c < d; ++c) {
                       dq(row, h * d + c) += ds * static_cast<double>(k(key, column + c));
                       dk(key, column + c) += ds * static_cast<double>(q(row, h * d + c));
                     }
                   }
                 });
}

}  // namespace nanotron::kernels::reference
