#pragma once

// attention.hpp as GPUs run it.

#include "nanotron/kernels/attention/attention.hpp"

namespace nanotron::kernels::blocked {

// attention.hpp by batched GEMMs over all heads: what a GPU runs. It compiles for the host too, where
// a test compares it with its reference implementation; attention.hpp runs other code on the host.

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

namespace nanotron::kernels::mma {

// attention.hpp in bf16 on tensor cores of NVIDIA GPUs from Ampere on (mma.sync), with the scores in registers
// (FlashAttention-2: Dao 2023): what a GPU runs where cuDNN is missing or not given a shape (fused::by_cudnn).
// Sums of a shape have one order, without atomics. It compiles for the host too, where a test compares it with its
// reference implementation.

inline constexpr index_t max_head_dim = 128;

/// As in attention.hpp, without a workspace. Needs compute capability 8.0, batch and key_length of at least 1, head_dim
/// a multiple of 8 up to max_head_dim, and rows that begin at multiples of 16 bytes. out may alias q if both have the
/// same leading dimension.
void attention_forward(Device& device, const AttentionShape& shape, MatrixRef<const bf16> q, MatrixRef<const bf16> k,
                       MatrixRef<const bf16> v, MatrixRef<bf16> out, Vector<float> lse);

/// The same for attention_backward. workspace has attention_workspace_bytes(shape) or more, and is overwritten. dq, dk
/// and dv alias nothing else: dq is written before q is read for the last time.
void attention_backward(Device& device, const AttentionShape& shape, const blocked::BackwardTensors<bf16>& tensors,
                        Vector<std::byte> workspace);
std::size_t attention_workspace_bytes(const AttentionShape& shape);

}  // namespace nanotron::kernels::mma
