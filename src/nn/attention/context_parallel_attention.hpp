#pragma once

// Makers of the attention of context parallelism; the classes are in the sources.

#include <algorithm>

#include "nanotron/nn/attention/attention_core.hpp"

namespace nanotron::nn {

/// Workspace for attention of the shape and the layer's denominator term.
template <class T>
std::size_t core_bytes(const AttentionGeometry<T>& layer, const kernels::AttentionShape& attention,
                       const kernels::AttentionShape& denominator, Processor processor) {
  const std::size_t bytes = kernels::attention_workspace_bytes<T>(attention, processor);
  return layer.denominator ? std::max(bytes, layer.denominator->workspace_bytes(denominator, processor)) : bytes;
}

template <class T>
std::unique_ptr<AttentionCore<T>> make_ring_attention(const ContextShard& context, const AttentionGeometry<T>& geometry,
                                                      index_t sequences, comm::Group& cp, Arena& arena);

/// Each rank has one range of positions.
template <class T>
std::unique_ptr<AttentionCore<T>> make_gathered_attention(const ContextShard& context,
                                                          const AttentionGeometry<T>& geometry, index_t sequences,
                                                          comm::Group& cp, Arena& arena);

template <class T>
std::unique_ptr<AttentionCore<T>> make_all_to_all_attention(const ContextShard& context,
                                                            const AttentionGeometry<T>& geometry, index_t sequences,
                                                            const ContextGroups& groups, Arena& arena);

}  // namespace nanotron::nn
