#pragma once

// Gated linear unit with SiLU (Shazeer, 2020): h = silu(gate) * up, silu(x) = x / (1 + exp(-x)).
//
// maxima (tokens): max |x| of each row that is written (kernels/fp8/quantise.hpp); empty where not needed.

#include "nanotron/kernels/fp8/quantise.hpp"
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

// SwiGLU of an expert, each row scaled by the routing weight of its token. Scaled here, the output of the down
// projection needs no weight, and backward needs no saved copy of it:
//
//   h = w silu(gate) up          dw = sum over the row of dh silu(gate) up
//   dgate, dup as in kernels/mlp/swiglu.hpp, with w dh for dh

/// gate_up (rows, gate | up), weights (rows) -> h (rows, width), overwritten.
template <class T>
void weighted_swiglu_forward(Device& device, Matrix<const T> gate_up, Vector<const master_t<T>> weights, Matrix<T> h);

/// gate_up is overwritten by its gradient; dweights (rows) is overwritten. order: of the sum over columns.
template <class T>
void weighted_swiglu_backward(Device& device, Matrix<T> gate_up, Vector<const master_t<T>> weights, Matrix<const T> dh,
                              Vector<master_t<T>> dweights, const SumOrder& order = {});

// The gradient of SwiGLU's input where it is only an FP8 operand: it is never stored, but computed twice, once for its
// largest value and once for its codes. Bit by bit quantise(swiglu_backward(gate_up, dh)), with two bytes less per
// element through memory.

/// maxima (tokens): max |x| of each row of dgate | dup.
void swiglu_backward_maxima(Device& device, Matrix<const bf16> gate_up, Matrix<const bf16> dh, Vector<float> maxima);

/// y (tokens, 2 f): both layouts, overwritten. f is a multiple of fp8_padding.
void quantise_swiglu_backward(Device& device, Matrix<const bf16> gate_up, Matrix<const bf16> dh,
                              Vector<const float> maxima, const Fp8Matrix<e5m2>& y);

}  // namespace nanotron::kernels
