#pragma once

// Attention sinks (Xiao et al. 2024; GPT-OSS): a logit z_h of each query head takes part in the denominator of the
// softmax, without a value. From the out o, lse of attention without it:
//
//   lse' = log(exp(lse) + exp(z))      o' = o exp(lse - lse')
//
// Attention's backward from o' and lse' gives dq, dk, dv; and
//
//   dz = - sum over queries of exp(z - lse') (do . o')

#include "nanotron/kernels/attention/attention.hpp"

namespace nanotron::kernels {

/// out, lse: of attention_forward of this shape, updated. sinks (query_heads).
template <class T>
void add_sinks(Device& device, const AttentionShape& shape, Vector<const master_t<T>> sinks, MatrixRef<T> out,
               Vector<master_t<T>> lse);

/// dsinks (query_heads) is accumulated, summed over the queries in a fixed order. out, lse: as add_sinks left them.
/// workspace has sinks_workspace_bytes, and is overwritten.
template <class T>
void sinks_backward(Device& device, const AttentionShape& shape, Vector<const master_t<T>> sinks,
                    MatrixRef<const T> out, MatrixRef<const T> dout, Vector<const master_t<T>> lse,
                    Vector<master_t<T>> dsinks, Vector<std::byte> workspace);

template <class T>
std::size_t sinks_workspace_bytes(const AttentionShape& shape, Processor processor);

}  // namespace nanotron::kernels
