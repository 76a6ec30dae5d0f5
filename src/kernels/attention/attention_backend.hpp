#pragma once

// The backends that attention.cpp calls: attention_host.cpp (tiles in cache) , attention_cuda.cpp
// (fused kernels, batched GEMMs) or attention_hip.cpp (batched GEMMs).

#include "kernels/attention/attention_fused.hpp"

namespace nanotron::kernels::detail {

/// Range of keys that queries first ... first + queries - 1 attend to; begin is rounded down to a multiple of `tile`.
inline Range keys_met(const AttentionShape& s, index_t sequence, index_t first, index_t queries, index_t tile) {
  return {s.keys_of(sequence, first).begin / tile * tile, s.keys_of(sequence, first + queries - 1).end};
}

template <class T>
using AttentionGradients = blocked::BackwardTensors<T>;

template <class T>
void run_forward(Device& device, fused::Library library, const AttentionShape& shape, MatrixRef<const T> q,
                 MatrixRef<const T> k, MatrixRef<const T> v, MatrixRef<T> out, Vector<master_t<T>> lse,
                 Vector<std::byte> workspace);

template <class T>
void run_backward(Device& device, fused::Library library, const AttentionShape& shape,
                  const AttentionGradients<T>& tensors, Vector<std::byte> workspace);

template <class T>
std::size_t workspace_bytes(const AttentionShape& shape);

/// Whether attention can use cuDNN and tensor cores on the device; neither on a host.
fused::Available available(Device& device);

template <class T>
std::string library(Device& device, const AttentionShape& shape);

#define NANOTRON_INSTANTIATE_ATTENTION(T)                                                                              \
  template void run_forward<T>(Device&, fused::Library, const AttentionShape&, MatrixRef<const T>, MatrixRef<const T>, \
                               MatrixRef<const T>, MatrixRef<T>, Vector<master_t<T>>, Vector<std::byte>);              \
  template void run_backward<T>(Device&, fused::Library, const AttentionShape&, const AttentionGradients<T>&,          \
                                Vector<std::byte>);                                                                    \
  template std::size_t workspace_bytes<T>(const AttentionShape&);                                                      \
  template std::string library<T>(Device&, const AttentionShape&);

}  // namespace nanotron::kernels::detail
