#pragma once

// Reference implementation of kernels/cross_entropy over a whole vocabulary, see reference/gemm.hpp.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "nanotron/tensor/tensor.hpp"

namespace nanotron::kernels::reference {

/// The loss of each row and its gradient times `scale`; rows with a negative target give zeros.
template <class T>
void cross_entropy(MatrixRef<const T> logits, const std::int32_t* targets, double scale, double* loss,
                   MatrixRef<double> gradient) {
  for (index_t i = 0; i < logits.rows; ++i) {
    double max = std::numeric_limits<double>::lowest();
    for (index_t c = 0; c < logits.columns; ++c) max = std::max<double>(max, logits(i, c));
    double sum = 0;
    for (index_t c = 0; c < logits.columns; ++c) sum += std::exp(static_cast<double>(logits(i, c)) - max);
    const bool counts = targets[i] >= 0;
    loss[i] = counts ? std::log(sum) + max - static_cast<double>(logits(i, targets[i])) : 0.0;
    for (index_t c = 0; c < logits.columns; ++c) {
      const double p = std::exp(static_cast<double>(logits(i, c)) - max) / sum;
      gradient(i, c) = counts ? scale * (p - (c == targets[i] ? 1.0 : 0.0)) : 0.0;
    }
  }
}

}  // namespace nanotron::kernels::reference
