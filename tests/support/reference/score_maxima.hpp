#pragma once

// Reference implementation of the maxima of kernels/attention/score_map.hpp, see reference/gemm.hpp.

#include <algorithm>
#include <vector>

#include "support/reference/attention.hpp"

namespace nanotron::kernels::reference {

/// Of each query head of the model, raised.
template <class T>
std::vector<double> score_maxima(const AttentionShape& s, MatrixRef<const T> q, MatrixRef<const T> k,
                                 std::vector<double> maxima) {
  for (index_t b = 0; b < s.batch; ++b) {
    for (index_t h = 0; h < s.query_heads; ++h) {
      double& max = maxima[static_cast<std::size_t>(s.first_query_head + h)];
      for (index_t i = 0; i < s.query_length; ++i) {
        const Range seen = s.keys_of(b, i);
        for (index_t j = seen.begin; j < seen.end; ++j) {
          double dot = 0.0;
          for (index_t c = 0; c < s.head_dim; ++c) {
            dot += static_cast<double>(q(b * s.query_row_stride() + i, h * s.head_dim + c)) *
                   static_cast<double>(k(b * s.key_row_stride() + j, s.key_head_of(h) * s.head_dim + c));
          }
          max = std::max(max, scale_of(s) * dot);
        }
      }
    }
  }
  return maxima;
}

}  // namespace nanotron::kernels::reference
