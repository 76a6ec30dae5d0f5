#pragma once

// The activation between the two GEMMs of a dense feed-forward network: gated, of the two halves gate and up, or
// elementwise.
//
//   silu              h = silu(gate) up      kernels/mlp/swiglu.hpp
//   gelu, gelu_new    h = gelu(up)           kernels/mlp/gelu.hpp

#include "nanotron/deck/keys/model.hpp"
#include "nanotron/nn/linear/linear.hpp"

namespace nanotron::nn {

template <class T>
class Activation {
 public:
  virtual ~Activation() = default;
  /// in (tokens, gate | up, or up) -> h (tokens, width), overwritten. maxima (tokens): max |x| of each row that is
  /// written; empty where not needed.
  virtual void forward(Device& device, Matrix<const T> in, Matrix<T> h, Vector<float> maxima) const = 0;
  /// in is overwritten by its gradient; or only the gradient's maxima are written, and input_gradient computes it.
  virtual void backward(Device& device, Matrix<T> in, Matrix<const T> dh, Vector<float> maxima) const = 0;
  /// After backward: the GEMM of in's gradient and the weight of the linear layer that computed `in`.
  virtual RowGemm<T> input_gradient(const Linear<T>& first, const Vector<float>& maxima, Matrix<const T>) const {
    return first.backward_input(maxima);
  }
};

/// Stateless: one object serves all layers.
template <class T>
const Activation<T>& activation_of(deck::HiddenAct kind);

}  // namespace nanotron::nn
