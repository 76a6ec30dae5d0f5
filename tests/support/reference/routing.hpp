#pragma once

// Reference implementations of kernels/routing and kernels/weighted_swiglu, see reference/gemm.hpp: one token or row at
// a time.

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "nanotron/base/types.hpp"
#include "nanotron/kernels/moe/routing.hpp"

namespace nanotron::kernels::reference {

struct Route {
  std::vector<double> probabilities, weights;
  std::vector<index_t> assignments;
  double z = 0.0;
};

// The experts of the best groups, as transformers' DeepSeek-V3 does it: sorted, then masked.
inline std::vector<bool> open_experts(const std::vector<double>& choice, const Routing& routing) {
  const std::size_t groups = static_cast<std::size_t>(routing.groups), size = choice.size() / groups;
  std::vector<std::pair<double, std::size_t>> scores;
  for (std::size_t g = 0; g < groups; ++g) {
    std::vector<double> of_group(choice.begin() + static_cast<std::ptrdiff_t>(g * size),
                                 choice.begin() + static_cast<std::ptrdiff_t>((g + 1) * size));
    std::sort(of_group.rbegin(), of_group.rend());
    const bool two = routing.score == deck::RouterScore::sigmoid && size > 1;
    scores.emplace_back(-(of_group[0] + (two ? of_group[1] : 0.0)), g);
  }
  std::sort(scores.begin(), scores.end());
  std::vector<bool> open(choice.size(), false);
  for (std::size_t i = 0; i < static_cast<std::size_t>(routing.groups_per_token); ++i) {
    for (std::size_t e = 0; e < size; ++e) open[scores[i].second * size + e] = true;
  }
  return open;
}

inline Route route(const std::vector<double>& logits, const Routing& routing, const std::vector<double>& bias = {}) {
  const bool is_sigmoid = routing.score == deck::RouterScore::sigmoid;
  Route r;
  double sum = 0.0, total = 0.0, chosen = 0.0;
  for (const double l : logits) sum += std::exp(l);
  r.z = std::log(sum);
  std::vector<double> scores, choice;
  for (const double l : logits) {
    scores.push_back(is_sigmoid ? 1.0 / (1.0 + std::exp(-l)) : std::exp(l - r.z));
    choice.push_back(scores.back() + (bias.empty() ? 0.0 : bias[choice.size()]));
    total += scores.back();
  }
  for (const double s : scores) r.probabilities.push_back(is_sigmoid ? s / total : s);
  const std::vector<bool> open = open_experts(choice, routing);
  std::vector<index_t> order;
  for (std::size_t e = 0; e < logits.size(); ++e) {
    if (open[e]) order.push_back(static_cast<index_t>(e));
  }
  std::stable_sort(order.begin(), order.end(), [&](index_t a, index_t b) {
    return choice[static_cast<std::size_t>(a)] > choice[static_cast<std::size_t>(b)];
  });
  r.assignments.assign(order.begin(), order.begin() + routing.top_k);
  for (const index_t e : r.assignments) {
    r.weights.push_back(scores[static_cast<std::size_t>(e)]);
    chosen += r.weights.back();
  }
  for (double& w : r.weights) w *= routing.factor / (routing.weights == TopKWeights::renormalised ? chosen : 1.0);
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
