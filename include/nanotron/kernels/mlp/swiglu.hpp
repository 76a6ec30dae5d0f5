#pragma once

// Gated linear unit with SiLU (Shazeer, 2020): h = silu(gate) * up, silu(x) = x / (1 + exp(-x)).
//
// maxima (tokens): max |x| of each row that is written (kernels/fp8/quantise.hpp); empty where it is not asked for.

#include "nanotron/tensor/device.hpp"
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

}  // namespace nanotron::kernels
