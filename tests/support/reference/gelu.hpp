#pragma once

// Reference implementations of kernels/mlp/gelu, see reference/gemm.hpp, written with erf and tanh.

#include <cmath>
#include <numbers>

#include "nanotron/kernels/mlp/gelu.hpp"

namespace nanotron::kernels::reference {

inline double gelu(GeluErf, double x) { return 0.5 * x * (1.0 + std::erf(x / std::numbers::sqrt2)); }
inline double gelu_slope(GeluErf, double x) {
  const double density = std::exp(-0.5 * x * x) / std::sqrt(2.0 * std::numbers::pi);
  return 0.5 * (1.0 + std::erf(x / std::numbers::sqrt2)) + x * density;
}

inline double gelu(GeluTanh, double x) {
  return 0.5 * x * (1.0 + std::tanh(std::sqrt(2.0 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
}
inline double gelu_slope(GeluTanh, double x) {
  const double c = std::sqrt(2.0 / std::numbers::pi), t = std::tanh(c * (x + 0.044715 * x * x * x));
  return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * c * (1.0 + 3.0 * 0.044715 * x * x);
}

}  // namespace nanotron::kernels::reference
