#include "nanotron/nn/linear/lora_linear.hpp"

#include "nanotron/base/types.hpp"
#include "nn/linear/rows.hpp"

namespace nanotron::nn {
namespace {

using kernels::Op;

template <class U>
MatrixRef<U> columns_of(const Matrix<U>& m, const Range& columns) {
  const auto rows = static_cast<index_t>(m.extent(0)), all = static_cast<index_t>(m.extent(1));
  return {m.data() == nullptr ? nullptr : m.data() + columns.begin, rows, columns.size(), all};
}

// The columns of one projection in x A^T and u.
template <class U>
MatrixRef<U> part_of(const Matrix<U>& m, std::size_t output, std::size_t outputs) {
  const index_t r = static_cast<index_t>(m.extent(1) / outputs), begin = static_cast<index_t>(output) * r;
  return columns_of(m, {begin, begin + r});
}

}  // namespace

// x A^T, for rows of A
template <class T>
Matrix<const T> LoraLinear<T>::inner_of(Device& device, Matrix<const T> x, Matrix<const T> a) const {
  const Matrix<T> inner(work_.inner.data(), x.extent(0), a.extent(0));
  kernels::gemm<T, T>(device, Op::none, Op::transpose, 1.0, x, a, 0.0, MatrixRef<T>(inner));
  return inner;
}

// u = dy B
template <class T>
Matrix<const T> LoraLinear<T>::gradient_of(Device& device, Matrix<const T> dy) const {
  const Matrix<T> u(work_.gradient.data(), dy.extent(0), w_.a.extent(0));
  for (std::size_t i = 0; i < w_.outputs.size(); ++i) {
    kernels::gemm<T, T>(device, Op::none, Op::none, 1.0, columns_of<const T>(dy, w_.outputs[i].columns),
                        w_.outputs[i].b, 0.0, part_of<T>(u, i, w_.outputs.size()));
  }
  return u;
}

//   y = x W^T (+ addend) + c (x A^T) B^T        dx = dy W + c u A
template <class T>
void LoraLinear<T>::multiply(Device& device, const RowGemm<T>& gemm, Matrix<const T> x, Matrix<T> y, index_t) const {
  RowGemm<T> of_weight = gemm;
  of_weight.gemms = nullptr;
  of_weight.bias = {};
  of_weight(device, x, y);
  if (gemm.op == Op::none) {
    kernels::gemm<T, T>(device, Op::none, Op::none, w_.scale, gradient_of(device, x), w_.a, 1.0, MatrixRef<T>(y));
    return;
  }
  const Matrix<const T> inner = inner_of(device, x, w_.a);
  for (std::size_t i = 0; i < w_.outputs.size(); ++i) {
    kernels::gemm<T, T>(device, Op::none, Op::transpose, w_.scale, part_of<const T>(inner, i, w_.outputs.size()),
                        w_.outputs[i].b, 1.0, columns_of<T>(y, w_.outputs[i].columns));
  }
}

// A copy with its rows one after the other.
template <class T>
MatrixRef<const T> LoraLinear<T>::packed(Device& device, MatrixRef<const T> columns) const {
  if (work_.columns.extent(0) == 0 || columns.leading == columns.columns) return columns;
  const MatrixRef<T> copy(work_.columns.data(), columns.rows, columns.columns);
  kernels::copy_matrix<T>(device, columns, copy);
  return copy;
}

//   dA += c u^T x        dB += c dy^T (x A^T)
//
// One projection after another has its x A^T and, of floats on a host, its dy packed: oneDNN has only a slow reference
// of A^T B for rows that lie apart.
template <class T>
void LoraLinear<T>::backward_weight(Device& device, Matrix<const T> dy, Matrix<const T> x, const OperandCodes&,
                                    Matrix<master_t<T>>) const {
  using M = master_t<T>;
  const Matrix<const T> u = gradient_of(device, dy);
  kernels::gemm<T, M>(device, Op::transpose, Op::none, w_.scale, u, x, 1.0, MatrixRef<M>(w_.a_gradient));
  const auto rank = static_cast<index_t>(w_.a.extent(0) / w_.outputs.size());
  for (std::size_t i = 0; i < w_.outputs.size(); ++i) {
    const index_t first = static_cast<index_t>(i) * rank;
    const Matrix<const T> inner = inner_of(device, x, rows_of<const T>(w_.a, {first, first + rank}));
    kernels::gemm<T, M>(device, Op::transpose, Op::none, w_.scale,
                        packed(device, columns_of<const T>(dy, w_.outputs[i].columns)), inner, 1.0,
                        MatrixRef<M>(w_.outputs[i].b_gradient));
  }
}

NANOTRON_INSTANTIATE_CLASS(LoraLinear)

}  // namespace nanotron::nn
