#pragma once

// Reference implementation of kernels/cross_entropy over a whole vocabulary, see reference/gemm.hpp.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "nanotron/kernels/vocab/cross_entropy.hpp"
#include "nanotron/tensor/tensor.hpp"

namespace nanotron::kernels::reference {

/// The loss of each row and lse^2, and the gradient of scale loss + z_scale lse^2 with respect to the argument of a
/// soft cap; rows with a negative target give zeros.
template <class T>
void cross_entropy(MatrixRef<const T> logits, const std::int32_t* targets, const LossGradient& of, double* loss,
                   double* lse2, MatrixRef<double> gradient) {
  for (index_t i = 0; i < logits.rows; ++i) {
    double max = std::numeric_limits<double>::lowest();
    for (index_t c = 0; c < logits.columns; ++c) max = std::max<double>(max, logits(i, c));
    double sum = 0;
    for (index_t c = 0; c < logits.columns; ++c) sum += std::exp(static_cast<double>(logits(i, c)) - max);
    const bool counts = targets[i] >= 0;
    const double lse = std::log(sum) + max;
    loss[i] = counts ? lse - static_cast<double>(logits(i, targets[i])) : 0.0;
    lse2[i] = counts ? lse * lse : 0.0;
    for (index_t c = 0; c < logits.columns; ++c) {
      const double p = std::exp(static_cast<double>(logits(i, c)) - max) / sum;
      const double capped = of.cap > 0.0 ? static_cast<double>(logits(i, c)) / of.cap : 0.0;
      const double of_loss = of.scale * (p - (c == targets[i] ? 1.0 : 0.0)), of_lse2 = 2.0 * of.z_scale * lse * p;
      gradient(i, c) = counts ? (of_loss + of_lse2) * (1.0 - capped * capped) : 0.0;
    }
  }
}

}  // namespace nanotron::kernels::reference
