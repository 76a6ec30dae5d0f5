#pragma once

// Reference implementations of kernels/attention, see reference/gemm.hpp. They hold one row of probabilities.

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "nanotron/kernels/attention/attention.hpp"

namespace nanotron::kernels::reference {

/// The slope of ALiBi of each head as BLOOM's build_alibi_tensor computes it.
inline std::vector<double> alibi_slopes(index_t heads) {
  const auto powers = [](double base, index_t first, index_t step, index_t count) {
    std::vector<double> values;
    for (index_t i = 0; i < count; ++i) values.push_back(std::pow(base, static_cast<double>(first + i * step)));
    return values;
  };
  const auto closest = static_cast<index_t>(std::pow(2.0, std::floor(std::log2(static_cast<double>(heads)))));
  const auto base = [](double n) { return std::pow(2.0, -std::pow(2.0, -(std::log2(n) - 3.0))); };
  std::vector<double> slopes = powers(base(static_cast<double>(closest)), 1, 1, closest);
  const auto more = powers(base(static_cast<double>(2 * closest)), 1, 2, std::min(closest, heads - closest));
  slopes.insert(slopes.end(), more.begin(), more.end());
  return slopes;
}

/// From the product of a query and a key to the score, and its derivative: score_map.hpp.
struct Scored {
  double value, rise;
};
inline double scale_of(const AttentionShape& s) {
  return s.scores.scale > 0.0 ? s.scores.scale : 1.0 / std::sqrt(static_cast<double>(s.head_dim));
}
inline Scored score_of(const AttentionShape& s, const std::vector<double>& slopes, index_t head, double product,
                       index_t distance) {
  const double x = scale_of(s) * product, c = s.scores.cap, t = c > 0.0 ? std::tanh(x / c) : 0.0;
  const double slope = slopes.empty() ? 0.0 : slopes[static_cast<std::size_t>(s.first_query_head + head)];
  return {(c > 0.0 ? c * t : x) - slope * static_cast<double>(distance), 1.0 - t * t};
}

/// f(sequence, query head, query, query row, row of the first key it sees, probabilities of those it sees,
/// lse, ds/dx of each); the probabilities are empty for a query that sees no key.
template <class T, class F>
void for_each_query(const AttentionShape& s, MatrixRef<const T> q, MatrixRef<const T> k, const F& f) {
  const index_t d = s.head_dim;
  const std::vector<double> slopes =
      s.scores.alibi_heads > 0 ? alibi_slopes(s.scores.alibi_heads) : std::vector<double>();
  for (index_t b = 0; b < s.batch; ++b) {
    for (index_t h = 0; h < s.query_heads; ++h) {
      for (index_t i = 0; i < s.query_length; ++i) {
        const index_t row = b * s.query_row_stride() + i;
        const Range seen = s.keys_of(b, i);
        const index_t key_row = b * s.key_row_stride() + seen.begin;
        std::vector<double> p(static_cast<std::size_t>(seen.size())), rise(p.size());
        double max = std::numeric_limits<double>::lowest();
        for (std::size_t j = 0; j < p.size(); ++j) {
          double dot = 0;
          for (index_t c = 0; c < d; ++c) {
            dot += static_cast<double>(q(row, h * d + c)) *
                   static_cast<double>(k(key_row + static_cast<index_t>(j), s.key_head_of(h) * d + c));
          }
          const index_t position = s.key_position + seen.begin + static_cast<index_t>(j);
          const Scored score = score_of(s, slopes, h, dot, s.query_position + i - position);
          p[j] = score.value;
          rise[j] = score.rise;
          max = std::max(max, p[j]);
        }
        double sum = 0;
        for (double& value : p) sum += value = std::exp(value - max);
        for (double& value : p) value /= sum;
        f(b, h, i, row, key_row, p, p.empty() ? max : max + std::log(sum), rise);
      }
    }
  }
}

/// What the random mask makes of a probability: 0, or 1 / (1 - p).
inline double mask_of(const AttentionShape& s, index_t sequence, index_t head, index_t query, index_t key) {
  if (!s.mask.is_on()) return 1.0;
  const MaskRow row = s.mask.row(sequence, s.query_position + query, s.first_query_head + head);
  return s.mask.keeps(row, s.key_position + key) ? s.mask.factor() : 0.0;
}

template <class T>
void attention_forward(const AttentionShape& s, MatrixRef<const T> q, MatrixRef<const T> k, MatrixRef<const T> v,
                       MatrixRef<double> out, double* lse) {
  const index_t d = s.head_dim;
  for_each_query(s, q, k,
                 [&](index_t b, index_t h, index_t i, index_t row, index_t key_row, const std::vector<double>& p,
                     double log_sum, const std::vector<double>&) {
                   lse[(b * s.query_heads + h) * s.query_row_stride() + i] = log_sum;
                   for (index_t c = 0; c < d; ++c) {
                     double sum = 0;
                     for (std::size_t j = 0; j < p.size(); ++j) {
                       const index_t key = key_row + static_cast<index_t>(j);
                       sum += p[j] * mask_of(s, b, h, i, key - b * s.key_row_stride()) *
                              static_cast<double>(v(key, s.key_head_of(h) * d + c));
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
  const double scale = scale_of(s);
  for_each_query(s, q, k,
                 [&](index_t b, index_t h, index_t i, index_t row, index_t key_row, const std::vector<double>& p,
                     double, const std::vector<double>& rise) {
                   const index_t column = s.key_head_of(h) * d;
                   std::vector<double> dp(p.size(), 0.0);
                   double mean = 0;
                   for (std::size_t j = 0; j < p.size(); ++j) {
                     const index_t key = key_row + static_cast<index_t>(j);
                     const double mask = mask_of(s, b, h, i, key - b * s.key_row_stride());
                     for (index_t c = 0; c < d; ++c) {
                       const double of_out = mask * static_cast<double>(dout(row, h * d + c));
                       dp[j] += of_out * static_cast<double>(v(key, column + c));
                       dv(key, column + c) += p[j] * of_out;
                     }
                     mean += p[j] * dp[j];
                   }
                   for (std::size_t j = 0; j < p.size(); ++j) {
                     const index_t key = key_row + static_cast<index_t>(j);
                     const double ds = p[j] * (dp[j] - mean) * rise[j] * scale;
                     for (index_t c = 0; c < d; ++c) {
                       dq(row, h * d + c) += ds * static_cast<double>(k(key, column + c));
                       dk(key, column + c) += ds * static_cast<double>(q(row, h * d + c));
                     }
                   }
                 });
}

}  // namespace nanotron::kernels::reference
