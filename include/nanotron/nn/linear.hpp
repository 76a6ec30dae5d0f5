#pragma once

// A linear layer, or the part of one that a tensor-parallel rank holds. For y = x W^T + b with W (out, in) and
// x (tokens, in):
//
//   dx = dy W        dW += dy^T x        db += sum over tokens of dy
//
// Cut by rows (column parallel in Shoeybi et al. 2019, section 3) W gives columns of y from all of x, and dx is
// a part of a sum over the group; cut by columns (row parallel) it takes columns of x and y is a part of a sum.
// The sums are the caller's (nn/residual_stream.hpp): nothing here communicates.

#include "nanotron/kernels/elementwise.hpp"
#include "nanotron/kernels/gemm.hpp"
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

/// The orders of the sums over features in, features out and tokens (kernels/gemm.hpp).
struct LinearOrders {
  SumOrder in{}, out{}, tokens{};
};

template <class T>
class Linear {
 public:
  using M = master_t<T>;

  explicit Linear(const LinearWeights<T>& w, const LinearOrders& orders = {}) : w_(w), orders_(orders) {}

  /// y is overwritten.
  void forward(Device& device, Matrix<const T> x, Matrix<T> y) const {
    kernels::gemm<T, T>(device, kernels::Op::none, kernels::Op::transpose, 1.0, x, w_.weight, 0.0,
                        MatrixRef<T>(y), orders_.in);
    if (w_.bias.extent(0) > 0) kernels::bias_add<T>(device, y, w_.bias);
  }

  /// dx is overwritten.
  void backward_input(Device& device, Matrix<const T> dy, Matrix<T> dx) const {
    kernels::gemm<T, T>(device, kernels::Op::none, kernels::Op::none, 1.0, dy, w_.weight, 0.0,
                        MatrixRef<T>(dx), orders_.out);
  }

  /// The gradients of weight and bias are accumulated. sums: bias_workspace_size(out, shards of tokens here), or empty
  /// without a bias.
  void backward_weight(Device& device, Matrix<const T> dy, Matrix<const T> x, Vector<M> sums = {}) const {
    kernels::gemm<T, M>(device, kernels::Op::transpose, kernels::Op::none, 1.0, dy, x, 1.0,
                        MatrixRef<M>(w_.gradient), orders_.tokens);
    if (w_.bias.extent(0) > 0) kernels::bias_backward<T>(device, dy, w_.bias_gradient, sums, orders_.tokens.held);
  }

 private:
  LinearWeights<T> w_;
  LinearOrders orders_;
};

}  // namespace nanotron::nn
