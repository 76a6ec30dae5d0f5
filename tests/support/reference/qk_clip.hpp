#pragma once

// Reference implementation of kernels/optim/qk_clip.hpp, see reference/gemm.hpp.

#include <algorithm>
#include <cmath>
#include <vector>

#include "nanotron/kernels/optim/qk_clip.hpp"

namespace nanotron::kernels::reference {

/// gamma of each key head, from the maxima of the query heads.
inline std::vector<double> clip_factors(double tau, const std::vector<double>& maxima, std::size_t keys) {
  std::vector<double> gamma;
  const auto group = static_cast<std::ptrdiff_t>(maxima.size() / keys);
  for (auto first = maxima.begin(); first != maxima.end(); first += group) {
    const double top = *std::max_element(first, first + group);
    gamma.push_back(top > tau ? tau / top : 1.0);
  }
  return gamma;
}

/// A whole matrix, row-major.
inline void clip_rows(std::vector<double>& p, const HeadRows& heads, const std::vector<double>& gamma) {
  for (std::size_t i = 0; i < p.size(); ++i) {
    const index_t row = static_cast<index_t>(i) / heads.columns, head = row / heads.rows;
    const double of_head = gamma[static_cast<std::size_t>(head / heads.heads_per_gamma)];
    if (row % heads.rows < heads.balanced) {
      p[i] *= std::sqrt(of_head);
    } else if (heads.rest == HeadRows::Rest::gamma) {
      p[i] *= of_head;
    }
  }
}

}  // namespace nanotron::kernels::reference
