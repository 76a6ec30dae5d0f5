#pragma once

// attention.hpp by batched GEMMs over all heads: what a GPU runs. It compiles for the host too, where
// a test compares it with its reference implementation; attention.hpp runs other code on the host.

#include "nanotron/kernels/attention/attention.hpp"

namespace nanotron::kernels::blocked {

/// As in attention.hpp.
template <class T>
void attention_forward(Device& device, const AttentionShape& shape, MatrixRef<const T> q, MatrixRef<const T> k,
                       MatrixRef<const T> v, MatrixRef<T> out, Vector<master_t<T>> lse, Vector<std::byte> workspace);

/// Inputs and outputs of backward, as in attention.hpp.
template <class T>
struct BackwardTensors {
  MatrixRef<const T> q, k, v, out, dout;
  Vector<const master_t<T>> lse;
  MatrixRef<T> dq, dk, dv;  // overwritten
};

template <class T>
void attention_backward(Device& device, const AttentionShape& shape, const BackwardTensors<T>& tensors,
                        Vector<std::byte> workspace);

template <class T>
std::size_t attention_workspace_bytes(const AttentionShape& shape);

}  // namespace nanotron::kernels::blocked
