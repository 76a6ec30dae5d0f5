#pragma once

// Makers of the kinds of attention other than local; the classes are in the sources.

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

/// The layer with a key head for each piece of so many query heads: what `core` of make_shared_key_attention computes.
template <class T>
AttentionGeometry<T> with_pieces(AttentionGeometry<T> layer, index_t piece);

/// For micro-batches of so many tokens.
template <class T>
std::unique_ptr<AttentionCore<T>> make_shared_key_attention(const AttentionGeometry<T>& layer, const SharedKeys& keys,
                                                            index_t tokens, std::unique_ptr<AttentionCore<T>> core,
                                                            Arena& arena);

}  // namespace nanotron::nn
