#pragma once

// The gradient of SwiGLU's input where it is only an FP8 operand: it is never stored, but computed twice, once for its
// largest value and once for its codes. The result is bitwise quantise(swiglu_backward(gate_up, dh)), with two bytes
// less per element through memory.

#include "nanotron/kernels/fp8/quantise.hpp"
#include "nanotron/tensor/device.hpp"
#include "nanotron/tensor/tensor.hpp"

namespace nanotron::kernels {

/// maxima (tokens): max |x| of each row of dgate | dup.
void swiglu_backward_maxima(Device& device, Matrix<const bf16> gate_up, Matrix<const bf16> dh, Vector<float> maxima);

/// y (tokens, 2 f): both layouts, overwritten. f is a multiple of fp8_padding.
void quantise_swiglu_backward(Device& device, Matrix<const bf16> gate_up, Matrix<const bf16> dh,
                              Vector<const float> maxima, const Fp8Matrix<e5m2>& y);

}  // namespace nanotron::kernels
