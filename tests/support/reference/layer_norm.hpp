#pragma once

// Reference implementations of kernels/norm/layer_norm, see reference/gemm.hpp.

#include <cmath>

#include "nanotron/tensor/tensor.hpp"

namespace nanotron::kernels::reference {

/// y, and mean and rstd of each row (2 rows).
template <class T, class M>
void layer_norm_forward(MatrixRef<const T> x, const M* w, const M* b, double eps, MatrixRef<double> y,
                        double* statistics) {
  const auto n = static_cast<double>(x.columns);
  for (index_t i = 0; i < x.rows; ++i) {
    double mean = 0, variance = 0;
    for (index_t c = 0; c < x.columns; ++c) mean += static_cast<double>(x(i, c)) / n;
    for (index_t c = 0; c < x.columns; ++c) variance += std::pow(static_cast<double>(x(i, c)) - mean, 2.0) / n;
    const double rstd = 1.0 / std::sqrt(variance + eps);
    statistics[2 * i] = mean;
    statistics[2 * i + 1] = rstd;
    for (index_t c = 0; c < x.columns; ++c) {
      y(i, c) = (static_cast<double>(x(i, c)) - mean) * rstd * static_cast<double>(w[c]) + static_cast<double>(b[c]);
    }
  }
}

/// dx, dw and db are accumulated.
template <class T, class M>
void layer_norm_backward(MatrixRef<const T> dy, MatrixRef<const T> x, const M* w, const double* statistics,
                         MatrixRef<double> dx, double* dw, double* db) {
  const auto n = static_cast<double>(x.columns);
  for (index_t i = 0; i < x.rows; ++i) {
    const double rstd = statistics[2 * i + 1];
    const auto hat = [&](index_t c) { return (static_cast<double>(x(i, c)) - statistics[2 * i]) * rstd; };
    const auto g = [&](index_t c) { return static_cast<double>(dy(i, c)) * static_cast<double>(w[c]); };
    double mean_g = 0, mean_gx = 0;
    for (index_t c = 0; c < x.columns; ++c) {
      mean_g += g(c) / n;
      mean_gx += g(c) * hat(c) / n;
    }
    for (index_t c = 0; c < x.columns; ++c) {
      dx(i, c) += rstd * (g(c) - mean_g - hat(c) * mean_gx);
      dw[c] += static_cast<double>(dy(i, c)) * hat(c);
      db[c] += static_cast<double>(dy(i, c));
    }
  }
}

}  // namespace nanotron::kernels::reference
