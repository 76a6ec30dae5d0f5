#pragma once

// The backends that attention.cpp calls: attention_host.cpp (tiles in cache) or attention_cuda.cpp
// (fused kernels, batched GEMMs).

#include "nanotron/kernels/attention/attention_blocked.hpp"

namespace nanotron::kernels::detail {

/// Range of keys that queries first ... first + queries - 1 attend to; begin is rounded down to a multiple of `tile`.
inline Range keys_met(const AttentionShape& s, index_t sequence, index_t first, index_t queries,
                      index_t tile) {
  return {s.keys_of(sequence, first).begin / tile * tile, s.keys_of(sequence, first + queries - 1).end};
}

template <class T>
using AttentionGradients = blocked::BackwardTensors<T>;

template <class T>
void run_forward(Device& device, const AttentionShape& shape, MatrixRef<const T> q,
                 MatrixRef<const T> k, MatrixRef<const T> v, MatrixRef<T> out,
                 Vector<master_t<T>> lse, Vector<std::byte> workspace);

template <class T>
void run_backward(Device& device, const AttentionShape& shape, const AttentionGradients<T>& tensors,
                  Vector<std::byte> workspace);

template <class T>
std::size_t workspace_bytes(const AttentionShape& shape);

template <class T>
std::string library(Device& device);

#define NANOTRON_INSTANTIATE_ATTENTION(T)                                                                         \
  template void run_forward<T>(Device&, const AttentionShape&, MatrixRef<const T>, MatrixRef<const T>,            \
                               MatrixRef<const T>, MatrixRef<T>, Vector<master_t<T>>, Vector<std::byte>);         \
  template void run_backward<T>(Device&, const AttentionShape&, const AttentionGradients<T>&, Vector<std::byte>); \
  template std::size_t workspace_bytes<T>(const AttentionShape&);                                                 \
  template std::string library<T>(Device&);

}  // namespace nanotron::kernels::detail
