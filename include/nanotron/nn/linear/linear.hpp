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

#include "nanotron/kernels/elementwise/elementwise.hpp"
#include "nanotron/kernels/gemm/gemm.hpp"
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

/// y = x op(W) + b. Rows are independent, so the GEMM may be split by rows of x.
template <class T>
struct RowGemm {
  kernels::Op op = kernels::Op::none;
  Matrix<const T> weight{};
  Vector<const master_t<T>> bias{};  // empty where there is none
  SumOrder order{};                  // of the sum over features of x

  /// x (rows, in) -> y (rows, out), overwritten.
  void operator()(Device& device, Matrix<const T> x, Matrix<T> y) const {
    kernels::gemm<T, T>(device, kernels::Op::none, op, 1.0, x, weight, 0.0, MatrixRef<T>(y), order);
    if (bias.extent(0) > 0) kernels::bias_add<T>(device, y, bias);
  }
};

template <class T>
class Linear {
 public:
  using M = master_t<T>;

  explicit Linear(const LinearWeights<T>& w, const LinearOrders& orders = {}) : w_(w), orders_(orders) {}

  /// x -> y; backward_input(): dy -> dx.
  RowGemm<T> forward() const { return {kernels::Op::transpose, w_.weight, w_.bias, orders_.in}; }
  /// x -> this rank's partial sum of y, without the bias: add_bias() adds it once, after the reduction.
  RowGemm<T> forward_part() const { return {kernels::Op::transpose, w_.weight, {}, orders_.in}; }
  void add_bias(Device& device, const MatrixRef<T>& y) const {
    if (w_.bias.extent(0) > 0) kernels::bias_add<T>(device, y, w_.bias);
  }
  Vector<const M> bias() const { return w_.bias; }
  RowGemm<T> backward_input() const { return {kernels::Op::none, w_.weight, {}, orders_.out}; }

  /// Accumulates the gradients of weight and bias. sums: bias_workspace_size(out, shards of tokens here) elements, or
  /// empty without a bias.
  void backward_weight(Device& device, Matrix<const T> dy, Matrix<const T> x, Vector<M> sums = {}) const {
    backward_matrix(device, dy, x, orders_.tokens);
    if (w_.bias.extent(0) > 0) kernels::bias_backward<T>(device, dy, w_.bias_gradient, sums, orders_.tokens.held);
  }
  /// Accumulates the gradient of the weight only, with this order of the sum over tokens. at: offset in elements from
  /// w.gradient, where several gradients are stored one after another.
  void backward_matrix(Device& device, Matrix<const T> dy, Matrix<const T> x, const SumOrder& tokens,
                       index_t at = 0) const {
    kernels::gemm<T, M>(device, kernels::Op::transpose, kernels::Op::none, 1.0, dy, x, 1.0,
                        MatrixRef<M>(w_.gradient.data() + at, w_.gradient.extent(0), w_.gradient.extent(1)), tokens);
  }

 private:
  LinearWeights<T> w_;
  LinearOrders orders_;
};

}  // namespace nanotron::nn
