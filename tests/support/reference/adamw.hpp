#pragma once

// Reference implementation of optim/adamw, see reference/gemm.hpp.

#include <cmath>

#include "nanotron/optim/adamw/adamw.hpp"

namespace nanotron::optim::reference {

/// Update `update` of one parameter, with the gradient after clipping.
inline void adamw(double& p, double g, double& m, double& v, const AdamwStep& s, std::int64_t update) {
  p *= 1.0 - s.learning_rate * s.weight_decay;
  m = s.beta1 * m + (1.0 - s.beta1) * g;
  v = s.beta2 * v + (1.0 - s.beta2) * g * g;
  const double t = static_cast<double>(update);
  const double denominator = std::sqrt(v) / std::sqrt(1.0 - std::pow(s.beta2, t)) + s.eps;
  p -= s.learning_rate / (1.0 - std::pow(s.beta1, t)) * m / denominator;
}

}  // namespace nanotron::optim::reference
