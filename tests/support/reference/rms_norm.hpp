#pragma once

// Reference implementations of kernels/rms_norm, see reference/gemm.hpp.

#include <cmath>

#include "nanotron/tensor/tensor.hpp"

namespace nanotron::kernels::reference {

/// y and rstd of each row.
template <class T, class M>
void rms_norm_forward(MatrixRef<const T> x, const M* w, double eps, MatrixRef<double> y, double* rstd) {
  for (index_t i = 0; i < x.rows; ++i) {
    double squares = 0;
    for (index_t c = 0; c < x.columns; ++c) {
      const double value = x(i, c);
      squares += value * value;
    }
    rstd[i] = 1.0 / std::sqrt(squares / static_cast<double>(x.columns) + eps);
    for (index_t c = 0; c < x.columns; ++c) {
      y(i, c) = static_cast<double>(x(i, c)) * rstd[i] * static_cast<double>(w[c]);
    }
  }
}

/// dx and dw are accumulated.
template <class T, class M>
void rms_norm_backward(MatrixRef<const T> dy, MatrixRef<const T> x, const M* w, const double* rstd,
                       MatrixRef<double> dx, double* dw) {
  for (index_t i = 0; i < x.rows; ++i) {
    double mean = 0;
    for (index_t c = 0; c < x.columns; ++c) {
      mean += static_cast<double>(dy(i, c)) * static_cast<double>(w[c]) * static_cast<double>(x(i, c)) * rstd[i] /
              static_cast<double>(x.columns);
    }
    for (index_t c = 0; c < x.columns; ++c) {
      const double hat = static_cast<double>(x(i, c)) * rstd[i];
      dx(i, c) += rstd[i] * (static_cast<double>(dy(i, c)) * static_cast<double>(w[c]) - hat * mean);
      dw[c] += static_cast<double>(dy(i, c)) * hat;
    }
  }
}

}  // namespace nanotron::kernels::reference
