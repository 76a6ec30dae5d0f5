#pragma once

// A linear layer, or the shard of one on a tensor-parallel rank. For y = x W^T + b with W (out, in) and x (tokens, in):
//
//   dx = dy W        dW += dy^T x        db += sum over tokens of dy
//
//   column parallel (W sharded by out)   all of x -> columns of y                columns of dy -> partial sum of dx
//   row parallel (W sharded by in)       columns of x -> partial sum of y        all of dy -> columns of dx
//
// (Shoeybi et al. 2019, section 3.) nn/linear/tensor_parallel_region.hpp reduces the partial sums.

#include <memory>
#include <utility>

#include "nanotron/kernels/elementwise/elementwise.hpp"
#include "nanotron/kernels/gemm/gemm.hpp"
#include "nanotron/nn/linear/linear_gemms.hpp"
#include "nanotron/tensor/device.hpp"

namespace nanotron::nn {

/// A weight and a bias with their gradients, which are empty where they are frozen; an empty bias is none.
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
  Vector<const master_t<T>> bias{};       // empty where there is none
  SumOrder order{};                       // of the sum over features of x
  Matrix<const T> addend{};               // r, of the rows of y; empty where there is none
  const LinearGemms<T>* gemms = nullptr;  // multiply, instead of kernels::gemm
  OperandCodes codes{};                   // of x
  index_t first_token = 0;                // of x, for GEMMs that keep something of all tokens
  Matrix<const T> swiglu_gradient{};      // x is gate | up: the operand is their gradient, from this one of h

  /// x (rows, in) -> y (rows, out), overwritten. chunk: which one of the tokens x is, see TensorParallelRegion.
  void operator()(Device& device, Matrix<const T> x, Matrix<T> y, index_t chunk = 0) const {
    if (gemms != nullptr) {
      gemms->multiply(device, *this, x, y, chunk);
    } else if (addend.extent(0) > 0) {
      kernels::gemm_add<T>(device, kernels::Op::none, op, x, weight, addend, MatrixRef<T>(y), order);
    } else {
      kernels::gemm<T, T>(device, kernels::Op::none, op, 1.0, x, weight, 0.0, MatrixRef<T>(y), order);
    }
    if (bias.extent(0) > 0) kernels::bias_add<T>(device, y, bias);
  }
};

template <class T>
class Linear {
 public:
  using M = master_t<T>;

  /// gemms: of a layer that has its own, else null; the sums then have no order.
  explicit Linear(const LinearWeights<T>& w, const LinearOrders& orders = {},
                  std::shared_ptr<const LinearGemms<T>> gemms = {})
      : w_(w), orders_(orders), gemms_(std::move(gemms)) {}

  /// x -> y; backward_input(): dy -> dx. of_x: what is kept of x; maxima: of the rows of dy, if they are known.
  RowGemm<T> forward(const OperandCodes& of_x = {}) const {
    return {.op = kernels::Op::transpose,
            .weight = w_.weight,
            .bias = w_.bias,
            .order = orders_.in,
            .gemms = gemms_.get(),
            .codes = of_x};
  }
  /// x -> this rank's partial sum of y, without the bias: add_bias() adds it once, after the reduction. addend: added
  /// to it where it is the whole sum, see model::ResidualSum.
  RowGemm<T> forward_part(const OperandCodes& of_x = {}, const Matrix<const T>& addend = {}) const {
    RowGemm<T> gemm = forward(of_x);
    gemm.bias = {};
    gemm.addend = addend;
    return gemm;
  }
  void add_bias(Device& device, const MatrixRef<T>& y) const {
    if (w_.bias.extent(0) > 0) kernels::bias_add<T>(device, y, w_.bias);
  }
  Vector<const M> bias() const { return w_.bias; }
  /// swiglu_gradient: see RowGemm; only of a layer with GEMMs of its own that form it, with maxima.
  RowGemm<T> backward_input(const Vector<float>& maxima = {}, const Matrix<const T>& swiglu_gradient = {}) const {
    return {.op = kernels::Op::none,
            .weight = w_.weight,
            .order = orders_.out,
            .gemms = gemms_.get(),
            .codes = {.maxima = maxima},
            .swiglu_gradient = swiglu_gradient};
  }

  /// Accumulates the gradients of weight and bias, unless they are frozen. sums: bias_workspace_size(out, shards of
  /// tokens here) elements, or empty without a bias.
  void backward_weight(Device& device, Matrix<const T> dy, Matrix<const T> x, Vector<M> sums = {},
                       const OperandCodes& of_x = {}) const {
    if (gemms_) {
      gemms_->backward_weight(device, dy, x, of_x, w_.gradient);
    } else if (w_.gradient.extent(0) > 0) {
      backward_matrix(device, dy, x, orders_.tokens);
    }
    if (w_.bias_gradient.extent(0) > 0)
      kernels::bias_backward<T>(device, dy, w_.bias_gradient, sums, orders_.tokens.shards_on_rank);
  }
  /// Accumulates the gradient of the weight only, with this order of the sum over tokens. at: offset in elements from
  /// w.gradient, where several gradients are stored one after another. Not of a layer with GEMMs of its own.
  void backward_matrix(Device& device, MatrixRef<const T> dy, MatrixRef<const T> x, const SumOrder& tokens,
                       index_t at = 0) const {
    kernels::gemm<T, M>(device, kernels::Op::transpose, kernels::Op::none, 1.0, dy, x, 1.0,
                        MatrixRef<M>(w_.gradient.data() + at, w_.gradient.extent(0), w_.gradient.extent(1)), tokens);
  }

  GemmTraffic traffic(index_t tokens) const { return gemms_ ? gemms_->traffic(tokens) : GemmTraffic{}; }

  /// Elements of the gradients of weight and bias.
  index_t gradient_elements() const { return static_cast<index_t>(w_.gradient.size() + w_.bias_gradient.size()); }
  /// This layer, whose gradients are sums over the tokens of the calls in their order; with `memory` of
  /// gradient_elements() they are stored there, else where they were.
  Linear in_order_of_calls(const Vector<M>& memory = {}) const {
    Linear layer = *this;
    layer.orders_.tokens = SumOrder();
    if (memory.extent(0) == 0) return layer;
    layer.w_.gradient = Matrix<M>(memory.data(), w_.gradient.extent(0), w_.gradient.extent(1));
    layer.w_.bias_gradient = Vector<M>(memory.data() + w_.gradient.size(), w_.bias_gradient.extent(0));
    return layer;
  }
  /// The gradients += those of a layer of in_order_of_calls().
  void add_gradients(Device& device, const Linear& other) const {
    kernels::add<M>(device, flat(other.w_.gradient), flat(w_.gradient));
    if (w_.bias_gradient.extent(0) > 0) kernels::add<M>(device, other.w_.bias_gradient, w_.bias_gradient);
  }

 private:
  LinearWeights<T> w_;
  LinearOrders orders_;
  std::shared_ptr<const LinearGemms<T>> gemms_;
};

}  // namespace nanotron::nn
