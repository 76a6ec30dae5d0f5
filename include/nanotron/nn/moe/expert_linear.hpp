#pragma once

// One linear layer of every expert here, without a bias. For the rows x_e of expert e and its weight W_e (out, in):
//
//   y_e = x_e W_e^T        dx_e = dy_e W_e        dW_e += dy_e^T x_e
//
//   library   a GEMM of kernels/gemm/gemm.hpp for each expert, with the number of rows known on the host
//   grouped   all experts in one launch (kernels/gemm/grouped/grouped_gemm.hpp), in bf16; the device knows the rows

#include <memory>
#include <vector>

#include "nanotron/deck/keys/run.hpp"
#include "nanotron/nn/linear/linear.hpp"
#include "nanotron/nn/moe/moe_memory.hpp"

namespace nanotron::nn {

template <class T>
class ExpertLinear {
 public:
  virtual ~ExpertLinear() = default;

  /// x (R, in) -> y (R, out), and dy -> dx. The rows of the experts are overwritten, no others.
  virtual void forward(Device& device, const ExpertRows& rows, Matrix<T> x, Matrix<T> y) const = 0;
  virtual void backward_input(Device& device, const ExpertRows& rows, Matrix<T> dy, Matrix<T> dx) const = 0;
  /// Accumulates the gradients of the weights.
  virtual void backward_weight(Device& device, const ExpertRows& rows, Matrix<T> dy, Matrix<T> x) const = 0;

  /// Call it before the first step: does what libraries do once for each GEMM shape. Overwrites x (R, in), y (R, out)
  /// and the gradients.
  virtual void prepare(Device& device, Matrix<T> x, Matrix<T> y) const = 0;
};

/// The orders of sums over features. If ExpertRows::cuts split the sums over rows: for this many sequences, each with
/// its own gradients, gradient_stride elements apart.
struct ExpertOrders {
  LinearOrders features{};
  index_t sequences = 1;
  index_t gradient_stride = 0;
};

/// weights: of the experts here, in their order. Grouped: T = bf16, no orders, and the weights and the gradients have
/// one stride from an expert to the next; can_group of kernels/gemm/grouped/grouped_gemm.hpp must hold.
template <class T>
std::unique_ptr<const ExpertLinear<T>> make_expert_linear(deck::ExpertGemms gemms,
                                                          const std::vector<LinearWeights<T>>& weights,
                                                          const ExpertOrders& orders);

}  // namespace nanotron::nn
