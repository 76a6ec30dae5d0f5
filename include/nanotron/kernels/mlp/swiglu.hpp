#pragma once

// Gated linear unit with SiLU (Shazeer, 2020): h = silu(gate) * up, silu(x) = x / (1 + exp(-x)).
//
// maxima (tokens): max |x| of each row that is written (row_maxima of elementwise.hpp); empty where not needed.

#include "nanotron/kernels/loop/scalar_math.hpp"
#include "nanotron/tensor/device.hpp"
#include "nanotron/tensor/sum_order.hpp"
#include "nanotron/tensor/tensor.hpp"

namespace nanotron::kernels {

/// gate_up (tokens, 2 f): f columns of the gate, then f of the up projection; h (tokens, f) is
/// overwritten.
template <class T>
void swiglu_forward(Device& device, Matrix<const T> gate_up, Matrix<T> h, Vector<float> maxima = {});

/// With s = 1 / (1 + exp(-gate)):
///   dgate = dh up s (1 + gate (1 - s))      dup = dh gate s
/// dgate_up (tokens, 2 f) is overwritten and may alias gate_up.
template <class T>
void swiglu_backward(Device& device, Matrix<const T> gate_up, Matrix<const T> dh, Matrix<T> dgate_up,
                     Vector<float> maxima = {});

/// One element of swiglu_backward.
template <class T>
struct GateUp {
  T gate, up;
};

template <class T>
NANOTRON_FUNCTION GateUp<T> swiglu_gradient(T gate, T up, T dh) {
  using M = master_t<T>;
  const M x = static_cast<M>(gate), u = static_cast<M>(up), g = static_cast<M>(dh);
  const M s = M(1) / (M(1) + exponential(-x));
  return {static_cast<T>(g * u * s * (M(1) + x * (M(1) - s))), static_cast<T>(g * x * s)};
}

// SwiGLU of an expert, each row scaled by the routing weight of its token. Scaled here, the output of the down
// projection needs no weight, and backward needs no saved copy of it:
//
//   h = w silu(gate) up          dw = sum over the row of dh silu(gate) up
//   dgate, dup as above, with w dh for dh

/// gate_up (rows, gate | up), weights (rows) -> h (rows, width), overwritten.
template <class T>
void weighted_swiglu_forward(Device& device, Matrix<const T> gate_up, Vector<const master_t<T>> weights, Matrix<T> h);

/// gate_up is overwritten by its gradient; dweights (rows) is overwritten. order: of the sum over columns.
template <class T>
void weighted_swiglu_backward(Device& device, Matrix<T> gate_up, Vector<const master_t<T>> weights, Matrix<const T> dh,
                              Vector<master_t<T>> dweights, const SumOrder& order = {});

}  // namespace nanotron::kernels
