#pragma once

// Views of rows of packed matrices and of the first elements of vectors. Private to the nn layer.

#include "nanotron/nn/linear/linear.hpp"
#include "nanotron/tensor/shard.hpp"
#include "nanotron/tensor/tensor.hpp"

namespace nanotron::nn {

template <class U>
Matrix<U> rows_of(const Matrix<U>& m, const Range& rows) {
  return Matrix<U>(m.data() + rows.begin * static_cast<index_t>(m.extent(1)), rows.size(), m.extent(1));
}

/// The first n rows, or elements.
template <class U>
Matrix<U> first(const Matrix<U>& m, index_t n) {
  return rows_of(m, {0, n});
}
template <class U>
Vector<U> first(const Vector<U>& v, index_t n) {
  return Vector<U>(v.data(), n);
}

/// The GEMM of rows of x from this token on.
template <class T>
RowGemm<T> from_token(RowGemm<T> gemm, index_t token) {
  gemm.first_token = token;
  return gemm;
}

}  // namespace nanotron::nn
