#pragma once

// From the product of a query and a key to the score in the softmax of attention:
//
//   x = scale q_i . k_j            scale: 1 / sqrt(head_dim) if the model says nothing else
//   s = c tanh(x / c)              with a soft cap c (Gemma 2)
//   s <- s - m_h (i - j)           with ALiBi (Press et al. 2022): i, j are positions, m_h the slope of query head h
//
// ALiBi of n heads, p the largest power of 2 up to n:
//
//   m_h = 2^(-8 (h + 1) / p) for h < p,  2^(-4 (2 (h - p) + 1) / p) for the others

#include <cmath>

#include "nanotron/base/elementary/logarithm.hpp"
#include "nanotron/base/types.hpp"
#include "nanotron/tensor/tensor.hpp"

namespace nanotron::kernels {

/// The largest x of each query head of the model, in device memory: attention_backward raises those of its query heads
/// to the x of the pairs of a query and a key that it attends to.
struct ScoreMaxima {
  double* data = nullptr;
  index_t heads = 0;  // 0: not wanted
};

struct ScoreMap {
  double scale = 0.0;       // 0: 1 / sqrt(head_dim)
  double cap = 0.0;         // 0: none
  index_t alibi_heads = 0;  // query heads of the model; 0: no ALiBi
  ScoreMaxima maxima{};     // only with a map that is a scale

  /// Whether a score is a multiple of the product.
  NANOTRON_FUNCTION bool is_scale() const { return cap == 0.0 && alibi_heads == 0; }

  template <class M>
  NANOTRON_FUNCTION M scale_or(M by_default) const {
    return scale > 0.0 ? static_cast<M>(scale) : by_default;
  }

  /// m of a query head, counted in the whole model; 0 without ALiBi.
  NANOTRON_FUNCTION double slope(index_t head) const {
    if (alibi_heads == 0) return 0.0;
    index_t power = 1;
    while (2 * power <= alibi_heads) power *= 2;
    const auto p = static_cast<double>(power);
    return head < power ? nanotron::power(2.0, -8.0 * static_cast<double>(head + 1) / p)
                        : nanotron::power(2.0, -4.0 * static_cast<double>(2 * (head - power) + 1) / p);
  }
};

}  // namespace nanotron::kernels
