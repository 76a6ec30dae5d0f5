#pragma once

// Reference implementations of kernels/routing and kernels/weighted_swiglu, see reference/gemm.hpp: one token or row at
// a time.

#include <algorithm>
#include <cmath>
#include <vector>

#include "nanotron/base/types.hpp"

namespace nanotron::kernels::reference {

struct Route {
  std::vector<double> probabilities, weights;
  std::vector<index_t> assignments;
  double z = 0.0;
};

inline Route route(const std::vector<double>& logits, index_t top_k, bool renormalises) {
  Route r;
  double sum = 0.0, chosen = 0.0;
  for (const double l : logits) sum += std::exp(l);
  r.z = std::log(sum);
  for (const double l : logits) r.probabilities.push_back(std::exp(l - r.z));
  std::vector<index_t> order(logits.size());
  for (std::size_t e = 0; e < order.size(); ++e) order[e] = static_cast<index_t>(e);
  std::stable_sort(order.begin(), order.end(), [&](index_t a, index_t b) {
    return logits[static_cast<std::size_t>(a)] > logits[static_cast<std::size_t>(b)];
  });
  r.assignments.assign(order.begin(), order.begin() + top_k);
  for (const index_t e : r.assignments) {
    r.weights.push_back(r.probabilities[static_cast<std::size_t>(e)]);
    chosen += r.weights.back();
  }
  for (double& w : r.weights) w /= renormalises ? chosen : 1.0;
  return r;
}

/// h (width) of one row.
inline std::vector<double> weighted_swiglu(const std::vector<double>& gate_up, double weight) {
  const std::size_t width = gate_up.size() / 2;
  std::vector<double> h(width);
  for (std::size_t c = 0; c < width; ++c) {
    h[c] = weight * gate_up[c] / (1.0 + std::exp(-gate_up[c])) * gate_up[width + c];
  }
  return h;
}

}  // namespace nanotron::kernels::reference
