#pragma once

// Makers of the attention of context parallelism; the classes are in the sources.

#include "nanotron/nn/attention/attention_core.hpp"

namespace nanotron::nn {

template <class T>
std::unique_ptr<AttentionCore<T>> make_ring_attention(const ContextShard& context, const AttentionGeometry<T>& geometry,
                                                      index_t sequences, comm::Group& cp, Arena& arena);

template <class T>
std::unique_ptr<AttentionCore<T>> make_all_to_all_attention(const ContextShard& context,
                                                            const AttentionGeometry<T>& geometry, index_t sequences,
                                                            comm::Group& cp, Arena& arena);

}  // namespace nanotron::nn
