#pragma once

// Reference implementation of kernels/gemm. References read the type under test, compute in fp64 and leave fp64
// results; pointers and matrices are host memory.

#include "nanotron/kernels/gemm/gemm.hpp"

namespace nanotron::kernels::reference {

/// C = alpha op(A) op(B) + beta C.
template <class T>
void gemm(Op op_a, Op op_b, double alpha, MatrixRef<const T> a, MatrixRef<const T> b, double beta,
          MatrixRef<double> c) {
  const index_t depth = op_a == Op::none ? a.columns : a.rows;
  for (index_t i = 0; i < c.rows; ++i) {
    for (index_t j = 0; j < c.columns; ++j) {
      double sum = 0;
      for (index_t k = 0; k < depth; ++k) {
        sum += static_cast<double>(op_a == Op::none ? a(i, k) : a(k, i)) *
               static_cast<double>(op_b == Op::none ? b(k, j) : b(j, k));
      }
      c(i, j) = alpha * sum + (beta == 0 ? 0.0 : beta * c(i, j));
    }
  }
}

}  // namespace nanotron::kernels::reference
