#pragma once

// Reference implementation of kernels/norm/projection_norm on one rank, see reference/gemm.hpp.

#include <cmath>
#include <vector>

#include "nanotron/tensor/tensor.hpp"

namespace nanotron::kernels::reference {

/// y = x / sqrt(mean(x^2) + eps) w, each row over all its columns.
inline void projection_norm(MatrixRef<const double> x, const double* w, double eps, MatrixRef<double> y) {
  for (index_t i = 0; i < x.rows; ++i) {
    double sum = 0;
    for (index_t c = 0; c < x.columns; ++c) sum += x(i, c) * x(i, c);
    const double r = 1.0 / std::sqrt(sum / static_cast<double>(x.columns) + eps);
    for (index_t c = 0; c < x.columns; ++c) y(i, c) = x(i, c) * r * w[c];
  }
}

}  // namespace nanotron::kernels::reference
