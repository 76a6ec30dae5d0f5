#pragma once

// Reference implementations of kernels/embedding, see reference/gemm.hpp.

#include <cstdint>

#include "nanotron/tensor/shard.hpp"
#include "nanotron/tensor/tensor.hpp"

namespace nanotron::kernels::reference {

template <class T>
void embedding_forward(const std::int32_t* tokens, Range vocabulary, MatrixRef<const T> table, MatrixRef<double> out,
                       double multiplier = 1.0) {
  for (index_t i = 0; i < out.rows; ++i) {
    for (index_t c = 0; c < out.columns; ++c) {
      const bool here = vocabulary.contains(tokens[i]);
      out(i, c) = here ? multiplier * static_cast<double>(table(tokens[i] - vocabulary.begin, c)) : 0.0;
    }
  }
}

/// dtable is accumulated.
template <class T>
void embedding_backward(const std::int32_t* tokens, Range vocabulary, MatrixRef<const T> dout, MatrixRef<double> dtable,
                        double multiplier = 1.0) {
  for (index_t i = 0; i < dout.rows; ++i) {
    if (!vocabulary.contains(tokens[i])) continue;
    for (index_t c = 0; c < dout.columns; ++c) {
      dtable(tokens[i] - vocabulary.begin, c) += multiplier * static_cast<double>(dout(i, c));
    }
  }
}

}  // namespace nanotron::kernels::reference
