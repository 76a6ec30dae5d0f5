#pragma once

// Reference implementation of kernels/mlp/xielu, see reference/gemm.hpp: as transformers' XIELUActivation writes it.

#include <algorithm>
#include <cmath>

namespace nanotron::kernels::reference {

inline double softplus(double a) { return std::log1p(std::exp(a)); }

inline double xielu(double a_p, double a_n, double x) {
  const double p = softplus(a_p), n = 0.5 + softplus(a_n);
  return x > 0.0 ? p * x * x + 0.5 * x : (std::expm1(std::min(x, -1e-6)) - x) * n + 0.5 * x;
}

/// Of x, a_p and a_n.
struct XieluSlopes {
  double x, a_p, a_n;
};
inline XieluSlopes xielu_slopes(double a_p, double a_n, double x) {
  const auto sigmoid = [](double a) { return 1.0 / (1.0 + std::exp(-a)); };
  if (x > 0.0) return {2.0 * softplus(a_p) * x + 0.5, x * x * sigmoid(a_p), 0.0};
  const double rise = x < -1e-6 ? std::expm1(x) : -1.0;
  return {rise * (0.5 + softplus(a_n)) + 0.5, 0.0, (std::expm1(std::min(x, -1e-6)) - x) * sigmoid(a_n)};
}

}  // namespace nanotron::kernels::reference
