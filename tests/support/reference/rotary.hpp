#pragma once

// The plain twin of kernels/rotary, see reference/gemm.hpp.

#include <cmath>
#include <cstdint>

#include "nanotron/tensor/tensor.hpp"

namespace nanotron::kernels::reference {

/// Turns the heads of x in place by direction (1 forward, -1 backward) times the angle of each
/// position.
inline void rotary(MatrixRef<double> x, index_t head_dim, const std::int32_t* positions,
                   double theta, double direction) {
  const index_t half = head_dim / 2;
  for (index_t t = 0; t < x.rows; ++t) {
    for (index_t first = 0; first < x.columns; first += head_dim) {
      for (index_t i = 0; i < half; ++i) {
        const double frequency =
            std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
        const double angle = direction * positions[t] * frequency;
        const double a = x(t, first + i);
        const double b = x(t, first + i + half);
        x(t, first + i) = a * std::cos(angle) - b * std::sin(angle);
        x(t, first + i + half) = b * std::cos(angle) + a * std::sin(angle);
      }
    }
  }
}

}  // namespace nanotron::kernels::reference
