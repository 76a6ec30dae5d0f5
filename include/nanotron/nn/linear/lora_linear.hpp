#pragma once

// The GEMMs of a linear layer with a frozen weight W (out, in) and adapters of rank r (LoRA, Hu et al. 2021). A layer
// of several projections has an A and a B for each that is adapted; c = alpha / r:
//
//   y = x W^T + c (x A^T) B^T          A (r, in), B (out, r)
//   dx = dy W + c u A,  u = dy B
//   dA += c u^T x                      dB += c dy^T (x A^T)
//
// x A^T and u are computed again where they are read: they cost r / in of the GEMM of W.
//
// On tensor-parallel ranks nothing here communicates, as with W alone:
//
//   column parallel   A replicated, B sharded by out: dA is a partial sum
//   row parallel      A sharded by in, B replicated: y is a partial sum, as x W^T is; dB is a partial sum
//
// model::PartialGradients all-reduces dA and dB.

#include <vector>

#include "nanotron/nn/linear/linear.hpp"
#include "nanotron/tensor/shard.hpp"

namespace nanotron::nn {

/// Of one projection.
template <class T>
struct LoraOutput {
  Range columns;        // of y
  Matrix<const T> b{};  // (columns, r)
  Matrix<master_t<T>> b_gradient{};
};

/// The A of all projections, one above the other, and their B.
template <class T>
struct LoraWeights {
  Matrix<const T> a{};  // (outputs * r, in)
  Matrix<master_t<T>> a_gradient{};
  std::vector<LoraOutput<T>> outputs{};
  double scale = 1.0;  // c
};

/// x A^T and u of all tokens and the layer with the most projections. Shared by all layers; each overwrites it.
template <class T>
struct LoraWorkspace {
  Vector<T> inner{}, gradient{};
  Vector<T> columns{};  // dy of the widest projection; of floats on a host, else empty
};

template <class T>
class LoraLinear final : public LinearGemms<T> {
 public:
  LoraLinear(LoraWeights<T> weights, const LoraWorkspace<T>& work) : w_(std::move(weights)), work_(work) {}

  void multiply(Device& device, const RowGemm<T>& gemm, Matrix<const T> x, Matrix<T> y, index_t chunk) const override;
  /// dA and dB. gradient: of W, which has none.
  void backward_weight(Device& device, Matrix<const T> dy, Matrix<const T> x, const OperandCodes& of_x,
                       Matrix<master_t<T>> gradient) const override;

 private:
  Matrix<const T> inner_of(Device& device, Matrix<const T> x, Matrix<const T> a) const;
  Matrix<const T> gradient_of(Device& device, Matrix<const T> dy) const;
  MatrixRef<const T> packed(Device& device, MatrixRef<const T> columns) const;

  LoraWeights<T> w_;
  LoraWorkspace<T> work_;
};

}  // namespace nanotron::nn
