#pragma once

// SwiGLU of an expert, each row scaled by the routing weight of its token. Scaled here, the output of the down
// projection needs no weight, and backward needs no saved copy of it:
//
//   h = w silu(gate) up          dw = sum over the row of dh silu(gate) up
//   dgate, dup as in kernels/mlp/swiglu.hpp, with w dh for dh

#include "nanotron/tensor/device.hpp"
#include "nanotron/tensor/sum_order.hpp"
#include "nanotron/tensor/tensor.hpp"

namespace nanotron::kernels {

/// gate_up (rows, gate | up), weights (rows) -> h (rows, width), overwritten.
template <class T>
void weighted_swiglu_forward(Device& device, Matrix<const T> gate_up, Vector<const master_t<T>> weights, Matrix<T> h);

/// gate_up is overwritten by its gradient; dweights (rows) is overwritten. order: of the sum over columns.
template <class T>
void weighted_swiglu_backward(Device& device, Matrix<T> gate_up, Vector<const master_t<T>> weights, Matrix<const T> dh,
                              Vector<master_t<T>> dweights, const SumOrder& order = {});

}  // namespace nanotron::kernels
