#pragma once

// The activation between the two GEMMs of a dense feed-forward network: gated, of the two halves gate and up, or
// elementwise.
//
//   silu              h = silu(gate) up      kernels/mlp/swiglu.hpp
//   gelu, gelu_new    h = gelu(up)           kernels/mlp/gelu.hpp

#include "nanotron/deck/model_config.hpp"
#include "nanotron/tensor/device.hpp"
#include "nanotron/tensor/tensor.hpp"

namespace nanotron::nn {

template <class T>
class Activation {
 public:
  virtual ~Activation() = default;
  /// in (tokens, gate | up, or up) -> h (tokens, width), overwritten.
  virtual void forward(Device& device, Matrix<const T> in, Matrix<T> h) const = 0;
  /// in is overwritten by its gradient.
  virtual void backward(Device& device, Matrix<T> in, Matrix<const T> dh) const = 0;
};

/// Stateless: one object serves all layers.
template <class T>
const Activation<T>& activation_of(deck::HiddenAct kind);

}  // namespace nanotron::nn
