#pragma once

// Linear layers cut over the tensor-parallel group (Shoeybi et al. 2019, section 3). For y = x W^T with
// W (out, in) and x (tokens, in); the column-parallel layer may add a bias b:
//
//   column parallel   W cut by rows:     x whole -> y columns of this rank.   backward: sum dx over the group
//   row parallel      W cut by columns:  x columns of this rank -> y whole.   forward:  sum y over the group
//
//   dx = dy W        dW += dy^T x        db += sum over tokens of dy
//
// Every rank of the group must call every function that communicates; dW and db are accumulated.

#include "nanotron/comm/collectives.hpp"
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

template <class T>
class ColumnParallelLinear {
 public:
  using M = master_t<T>;

  ColumnParallelLinear(const LinearWeights<T>& w, comm::Group& tp) : w_(w), tp_(&tp) {}

  void forward(Device& device, Matrix<const T> x, Matrix<T> y) const {
    kernels::gemm<T, T>(device, kernels::Op::none, kernels::Op::transpose, 1.0, x, w_.weight, 0.0,
                        MatrixRef<T>(y));
    if (w_.bias.extent(0) > 0) kernels::bias_add<T>(device, y, w_.bias);
  }

  /// Overwrites dx and begins its sum over the group: dx may be read after the request's wait(). Call
  /// backward_weight before that, so that the sum runs behind it.
  [[nodiscard]] comm::Request start_backward_input(Device& device, Matrix<const T> dy,
                                                   Matrix<T> dx) const {
    kernels::gemm<T, T>(device, kernels::Op::none, kernels::Op::none, 1.0, dy, w_.weight, 0.0,
                        MatrixRef<T>(dx));
    return comm::start_all_reduce(*tp_, dx.data(), dx.size(), comm::ReduceOp::sum, device.stream());
  }

  void backward_weight(Device& device, Matrix<const T> dy, Matrix<const T> x,
                       Vector<M> workspace) const {
    kernels::gemm<T, M>(device, kernels::Op::transpose, kernels::Op::none, 1.0, dy, x, 1.0,
                        MatrixRef<M>(w_.gradient));
    if (w_.bias.extent(0) > 0) {
      kernels::bias_backward<T>(device, dy, w_.bias_gradient, workspace);
    }
  }

 private:
  LinearWeights<T> w_;
  comm::Group* tp_;
};

/// Without a bias: those views of its weights are not read.
template <class T>
class RowParallelLinear {
 public:
  using M = master_t<T>;

  RowParallelLinear(const LinearWeights<T>& w, comm::Group& tp) : w_(w), tp_(&tp) {}

  void forward(Device& device, Matrix<const T> x, Matrix<T> y) const {
    kernels::gemm<T, T>(device, kernels::Op::none, kernels::Op::transpose, 1.0, x, w_.weight, 0.0,
                        MatrixRef<T>(y));
    comm::all_reduce(*tp_, y.data(), y.size(), comm::ReduceOp::sum, device.stream());
  }

  void backward_input(Device& device, Matrix<const T> dy, Matrix<T> dx) const {
    kernels::gemm<T, T>(device, kernels::Op::none, kernels::Op::none, 1.0, dy, w_.weight, 0.0,
                        MatrixRef<T>(dx));
  }

  void backward_weight(Device& device, Matrix<const T> dy, Matrix<const T> x) const {
    kernels::gemm<T, M>(device, kernels::Op::transpose, kernels::Op::none, 1.0, dy, x, 1.0,
                        MatrixRef<M>(w_.gradient));
  }

 private:
  LinearWeights<T> w_;
  comm::Group* tp_;
};

}  // namespace nanotron::nn
