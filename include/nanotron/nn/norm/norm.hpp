#pragma once

// The norm of the hidden states, as model%normalization says:
//
//   RMSNorm      y = x / sqrt(mean(x^2) + eps) s                      kernels/norm/norm.hpp
//   LayerNorm    y = (x - mean(x)) / sqrt(var(x) + eps) s + b         kernels/norm/norm.hpp
//
// s is w, 1 + w or 1, as model%norm_weight says; model%norm_bias leaves b out.
// With sequence-parallel hidden states the gradients of w and b are partial sums over the tensor-parallel group.

#include <memory>

#include "nanotron/deck/keys/model.hpp"
#include "nanotron/kernels/norm/norm.hpp"
#include "nanotron/tensor/device.hpp"
#include "nanotron/tensor/tensor.hpp"

namespace nanotron::nn {

/// Views of one layer's weights and their gradients; empty where there are none.
template <class T>
struct NormWeights {
  using M = master_t<T>;
  kernels::NormScale<M> weight{};
  Vector<M> gradient{};
  Vector<const M> bias{};
  Vector<M> bias_gradient{};
};

/// The hidden states between two blocks. What the GEMM at the end of a block does not add, the next norm adds, which
/// reads the sum anyway.
template <class T>
struct HiddenStates {
  Matrix<T> x{};             // (rows, hidden); with an addend, the output of a block
  Matrix<const T> addend{};  // of x's shape; empty: x is whole

  bool is_whole() const { return addend.extent(0) == 0; }
};

template <class T>
class Norm {
 public:
  using M = master_t<T>;
  virtual ~Norm() = default;

  /// x.x <- x.x + x.addend, rounded to T; x.x -> y, both (rows, hidden), and statistics (rows x NormSizes::statistics)
  /// for backward; both overwritten. maxima (rows): max |y| of each row; empty where not needed.
  virtual void forward(Device& device, const HiddenStates<T>& x, Matrix<T> y, Vector<M> statistics,
                       Vector<float> maxima) const = 0;
  /// dx += gradient of x, the input of forward. Accumulates the weight gradients, in a fixed order through workspace.
  virtual void backward(Device& device, Matrix<const T> dy, Matrix<const T> x, Vector<const M> statistics, Matrix<T> dx,
                        Vector<M> workspace) const = 0;

  // Of the output of a block. Not of norms made by make_no_norm.

  /// y <- residual + norm(x), all (rows, hidden), and statistics. y may alias residual.
  virtual void add_forward(Device& device, Matrix<const T> x, Matrix<const T> residual, Matrix<T> y,
                           Vector<M> statistics) const = 0;
  /// x <- gradient of x, which backward of the block reads next. The gradient of residual is dy. Weights as above.
  virtual void add_backward(Device& device, Matrix<const T> dy, Matrix<T> x, Vector<const M> statistics,
                            Vector<M> workspace) const = 0;
};

struct NormSizes {
  index_t statistics = 0;  // per row
  index_t workspace = 0;
};
NormSizes norm_sizes(deck::Normalization kind, Processor processor, index_t rows, index_t columns,
                     const kernels::RowSegments& segments);

template <class T>
std::unique_ptr<const Norm<T>> make_norm(deck::Normalization kind, const NormWeights<T>& weights, double eps,
                                         const kernels::RowSegments& segments);

/// Of a block that reads the hidden states as they are: forward writes only the maxima, of x; it needs whole x.
template <class T>
std::unique_ptr<const Norm<T>> make_no_norm();

}  // namespace nanotron::nn
