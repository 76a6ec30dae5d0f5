#pragma once

// A linear layer, or the shard of one on a tensor-parallel rank. For y = x W^T + b with W (out, in) and x (tokens, in):
//
//   dx = dy W        dW += dy^T x        db += sum over tokens of dy
//
//   column parallel (W sharded by out)   all of x -> columns of y                columns of dy -> partial sum of dx
//   row parallel (W sharded by in)       columns of x -> partial sum of y        all of dy -> columns of dx
//
// (Shoeybi et al. 2019, section 3.) Nothing here communicates: nn/linear/tensor_parallel_region.hpp reduces the partial
// sums, and multiplies some rows while others are in flight.

#include <optional>

#include "nanotron/kernels/elementwise/elementwise.hpp"
#include "nanotron/kernels/gemm/gemm.hpp"
#include "nanotron/nn/linear/fp8_linear.hpp"
#include "nanotron/tensor/device.hpp"

namespace nanotron::nn {

/// A weight with its gradient; the bias views are empty where there is none.
template <class T>
struct LinearWeights {
  using M = master_t<T>;
  Matrix<const T> weight{};
  Matrix<M> gradient{};
  Vector<const M> bias{};
  Vector<M> bias_gradient{};
};

/// The orders of the sums over features in, features out and tokens (kernels/gemm/gemm.hpp).
struct LinearOrders {
  SumOrder in{}, out{}, tokens{};
};

/// y = x op(W) + b, or x op(W) + r. Rows are independent, so the GEMM may be split by rows of x.
template <class T>
struct RowGemm {
  kernels::Op op = kernels::Op::none;
  Matrix<const T> weight{};
  Vector<const master_t<T>> bias{};  // empty where there is none
  SumOrder order{};                  // of the sum over features of x
  AnyFp8Product fp8{};               // in its place
  Matrix<const T> addend{};          // r, of the rows of y; empty where there is none

  /// x (rows, in) -> y (rows, out), overwritten. chunk: which one of the tokens x is, see TensorParallelRegion.
  void operator()(Device& device, Matrix<const T> x, Matrix<T> y, index_t chunk = 0) const {
    std::visit([&](const auto& product) { multiply(device, product, x, y, chunk); }, fp8);
    if (bias.extent(0) > 0) kernels::bias_add<T>(device, y, bias);
  }

  // The product, one of two.
  void multiply(Device& device, NoFp8Product, const Matrix<const T>& x, const Matrix<T>& y, index_t) const {
    if (addend.extent(0) > 0) {
      kernels::gemm_add<T>(device, kernels::Op::none, op, x, weight, addend, MatrixRef<T>(y), order);
    } else {
      kernels::gemm<T, T>(device, kernels::Op::none, op, 1.0, x, weight, 0.0, MatrixRef<T>(y), order);
    }
  }
  template <class Product>
  void multiply(Device& device, const Product& product, const Matrix<const T>& x, const Matrix<T>& y,
                index_t chunk) const {
    if constexpr (std::is_same_v<T, bf16>) product(device, x, addend, y, chunk);
  }
};

template <class T>
class Linear {
 public:
  using M = master_t<T>;

  /// fp8: of a linear layer with FP8 operands, T = bf16; the sums then have no order.
  explicit Linear(const LinearWeights<T>& w, const LinearOrders& orders = {}, const std::optional<Fp8Linear>& fp8 = {})
      : w_(w), orders_(orders), fp8_(fp8) {}

  /// x -> y; backward_input(): dy -> dx. of_x: codes of x that are kept in FP8; maxima: of the rows of dy, if they are
  /// known.
  RowGemm<T> forward(const Fp8Input& of_x = {}) const {
    return {kernels::Op::transpose, w_.weight, w_.bias, orders_.in, product([&] { return fp8_->forward(of_x); })};
  }
  /// x -> this rank's partial sum of y, without the bias: add_bias() adds it once, after the reduction. addend: added
  /// to it where it is the whole sum, see model::ResidualSum.
  RowGemm<T> forward_part(const Fp8Input& of_x = {}, const Matrix<const T>& addend = {}) const {
    return {kernels::Op::transpose, w_.weight, {}, orders_.in, product([&] { return fp8_->forward(of_x); }), addend};
  }
  void add_bias(Device& device, const MatrixRef<T>& y) const {
    if (w_.bias.extent(0) > 0) kernels::bias_add<T>(device, y, w_.bias);
  }
  Vector<const M> bias() const { return w_.bias; }
  RowGemm<T> backward_input(const Vector<const float>& maxima = {}) const {
    return {kernels::Op::none, w_.weight, {}, orders_.out, product([&] { return fp8_->backward_input(maxima); })};
  }

  /// backward_input() of the gradient of gate | up, from that of h (tokens, width); T = bf16, in FP8.
  RowGemm<T> backward_swiglu_input(const Vector<const float>& maxima, const Matrix<const T>& dh) const {
    AnyFp8Product fp8;
    if constexpr (std::is_same_v<T, bf16>) fp8 = Fp8SwigluProduct{fp8_->backward_input(maxima), dh};
    return {kernels::Op::none, w_.weight, {}, orders_.out, fp8};
  }

  /// Accumulates the gradients of weight and bias. sums: bias_workspace_size(out, shards of tokens here) elements, or
  /// empty without a bias. In FP8: right after backward_input() of this layer, unless Fp8Gradients says otherwise.
  void backward_weight(Device& device, Matrix<const T> dy, Matrix<const T> x, Vector<M> sums = {},
                       const Fp8Input& of_x = {}) const {
    if constexpr (std::is_same_v<T, bf16>) {
      if (fp8_) fp8_->backward_weight(device, dy, x, of_x, w_.gradient);
    }
    if (!fp8_) backward_matrix(device, dy, x, orders_.tokens);
    if (w_.bias.extent(0) > 0) kernels::bias_backward<T>(device, dy, w_.bias_gradient, sums, orders_.tokens.held);
  }
  /// Accumulates the gradient of the weight only, with this order of the sum over tokens. at: offset in elements from
  /// w.gradient, where several gradients are stored one after another. Not in FP8.
  void backward_matrix(Device& device, Matrix<const T> dy, Matrix<const T> x, const SumOrder& tokens,
                       index_t at = 0) const {
    kernels::gemm<T, M>(device, kernels::Op::transpose, kernels::Op::none, 1.0, dy, x, 1.0,
                        MatrixRef<M>(w_.gradient.data() + at, w_.gradient.extent(0), w_.gradient.extent(1)), tokens);
  }

 private:
  template <class F>
  AnyFp8Product product(const F& of_fp8) const {
    if (fp8_) return of_fp8();
    return NoFp8Product{};
  }

  LinearWeights<T> w_;
  LinearOrders orders_;
  std::optional<Fp8Linear> fp8_;
};

}  // namespace nanotron::nn
