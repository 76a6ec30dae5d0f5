#include "nanotron/nn/linear/lora_linear.hpp"

#include "nanotron/base/types.hpp"
#include "nanotron/kernels/elementwise/elementwise.hpp"
#include "nn/linear/rows.hpp"

namespace nanotron::nn {
namespace {

using kernels::Op;

template <class U>
MatrixRef<U> columns_of(const MatrixRef<U>& m, const Range& columns) {
  return {m.data == nullptr ? nullptr : m.data + columns.begin, m.rows, columns.size(), m.leading};
}

// The columns of one projection in x A^T and u.
template <class U>
MatrixRef<U> part_of(const MatrixRef<U>& m, std::size_t output, std::size_t outputs) {
  const index_t r = m.columns / static_cast<index_t>(outputs), begin = static_cast<index_t>(output) * r;
  return columns_of(m, {begin, begin + r});
}

template <class T>
void add_over(comm::Group* group, Device& device, const Matrix<T>& m) {
  if (group != nullptr) comm::all_reduce<T>(*group, m.data(), elements_of(m), comm::ReduceOp::sum, device.stream());
}

}  // namespace

template <class T>
Matrix<T> LoraLinear<T>::first_rows(const Vector<T>& buffer, std::size_t rows, index_t columns) const {
  return Matrix<T>(buffer.data(), rows, static_cast<std::size_t>(columns));
}

template <class T>
Matrix<T> LoraLinear<T>::rows_to_sum(const Range& tokens) const {
  T* const all = work_.summed.data();
  return Matrix<T>(all == nullptr ? nullptr : all + tokens.begin * columns(), tokens.size(), columns());
}

// x A^T, for rows of A
template <class T>
void LoraLinear<T>::inner_of(Device& device, Matrix<const T> x, Matrix<const T> a, const Matrix<T>& inner) const {
  kernels::gemm<T, T>(device, Op::none, Op::transpose, 1.0, x, a, 0.0, MatrixRef<T>(inner), sums_.in);
  add_over(sums_.inner, device, inner);
}

// u = dy B
template <class T>
void LoraLinear<T>::gradient_of(Device& device, Matrix<const T> dy, const Matrix<T>& u) const {
  for (std::size_t i = 0; i < w_.outputs.size(); ++i) {
    const LoraOutput<T>& output = w_.outputs[i];
    kernels::gemm<T, T>(device, Op::none, Op::none, 1.0, columns_of<const T>(dy, output.columns), output.b, 0.0,
                        part_of<T>(u, i, w_.outputs.size()), output.order);
  }
  add_over(sums_.gradient, device, u);
}

//   y += c (x A^T) B^T        dx += c u A
template <class T>
void LoraLinear<T>::add_product(Device& device, Op op, const Matrix<const T>& inner, const MatrixRef<T>& y) const {
  if (op == Op::none) return kernels::gemm<T, T>(device, Op::none, Op::none, w_.scale, inner, w_.a, 1.0, y);
  for (std::size_t i = 0; i < w_.outputs.size(); ++i) {
    kernels::gemm<T, T>(device, Op::none, Op::transpose, w_.scale, part_of<const T>(inner, i, w_.outputs.size()),
                        w_.outputs[i].b, 1.0, columns_of<T>(y, w_.outputs[i].columns));
  }
}

template <class T>
bool LoraLinear<T>::adds_to_sum(const RowGemm<T>& gemm) const {
  return (gemm.op == Op::none ? sums_.gradient : sums_.inner) != nullptr;
}

//   y = x W^T (+ addend) + c (x A^T) B^T        dx = dy W + c u A
template <class T>
void LoraLinear<T>::multiply(Device& device, const RowGemm<T>& gemm, Matrix<const T> x, Matrix<T> y, index_t) const {
  RowGemm<T> of_weight = gemm;
  of_weight.gemms = nullptr;
  of_weight.bias = {};
  of_weight(device, x, y);
  const bool is_gradient = gemm.op == Op::none, later = adds_to_sum(gemm);
  const auto rows = static_cast<index_t>(x.extent(0));
  const Matrix<T> inner = later ? rows_to_sum({gemm.first_token, gemm.first_token + rows})
                                : first_rows(is_gradient ? work_.gradient : work_.inner, x.extent(0), columns());
  if (is_gradient) {
    gradient_of(device, x, inner);
  } else {
    inner_of(device, x, w_.a, inner);
  }
  if (!later) add_product(device, gemm.op, inner, y);
}

template <class T>
void LoraLinear<T>::add_to_sum(Device& device, const RowGemm<T>& gemm, const Range& tokens,
                               const MatrixRef<T>& y) const {
  add_product(device, gemm.op, rows_to_sum(tokens), y);
}

template <class T>
GemmTraffic LoraLinear<T>::traffic(index_t tokens) const {
  const auto of = [&](const comm::Group* group) -> comm::StepTraffic {
    if (group == nullptr) return {};
    const index_t bytes = tokens * columns() * static_cast<index_t>(sizeof(T));
    return {.tensor_parallel = comm::all_reduce_bytes(bytes, group->size())};
  };
  return {.forward = of(sums_.inner),
          .backward_input = of(sums_.gradient),
          .backward_weight = of(sums_.inner) + of(sums_.gradient)};
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
  const double scale = sums_.are_ordered() ? 1.0 : w_.scale;
  const auto scale_terms = [&](const Matrix<T>& m) {
    if (sums_.are_ordered()) kernels::scale<T>(device, w_.scale, m, m);
  };
  const Matrix<T> u = first_rows(work_.gradient, dy.extent(0), columns());
  gradient_of(device, dy, u);
  scale_terms(u);
  kernels::gemm<T, M>(device, Op::transpose, Op::none, scale, u, x, 1.0, MatrixRef<M>(w_.a_gradient), sums_.tokens);
  const index_t rank = columns() / static_cast<index_t>(w_.outputs.size());
  for (std::size_t i = 0; i < w_.outputs.size(); ++i) {
    const index_t first = static_cast<index_t>(i) * rank;
    const Matrix<T> inner = first_rows(work_.inner, x.extent(0), rank);
    inner_of(device, x, rows_of<const T>(w_.a, {first, first + rank}), inner);
    scale_terms(inner);
    kernels::gemm<T, M>(device, Op::transpose, Op::none, scale,
                        packed(device, columns_of<const T>(dy, w_.outputs[i].columns)), inner, 1.0,
                        MatrixRef<M>(w_.outputs[i].b_gradient), sums_.tokens);
  }
}

NANOTRON_INSTANTIATE_CLASS(LoraLinear)

}  // namespace nanotron::nn
