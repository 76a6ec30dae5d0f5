#pragma once

// Reference implementations of kernels/mlp/pointwise, see reference/gemm.hpp, written with erf and tanh.

#include <algorithm>
#include <cmath>
#include <numbers>

#include "nanotron/kernels/mlp/pointwise.hpp"

namespace nanotron::kernels::reference {

inline double value(GeluErf, double x) { return 0.5 * x * (1.0 + std::erf(x / std::numbers::sqrt2)); }
inline double slope(GeluErf, double x) {
  const double density = std::exp(-0.5 * x * x) / std::sqrt(2.0 * std::numbers::pi);
  return 0.5 * (1.0 + std::erf(x / std::numbers::sqrt2)) + x * density;
}

inline double value(GeluTanh, double x) {
  return 0.5 * x * (1.0 + std::tanh(std::sqrt(2.0 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
}
inline double slope(GeluTanh, double x) {
  const double c = std::sqrt(2.0 / std::numbers::pi), t = std::tanh(c * (x + 0.044715 * x * x * x));
  return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * c * (1.0 + 3.0 * 0.044715 * x * x);
}

inline double value(Relu, double x) { return std::max(x, 0.0); }
inline double slope(Relu, double x) { return x > 0.0 ? 1.0 : 0.0; }

inline double value(ReluSquared, double x) { return x > 0.0 ? x * x : 0.0; }
inline double slope(ReluSquared, double x) { return x > 0.0 ? 2.0 * x : 0.0; }

}  // namespace nanotron::kernels::reference
