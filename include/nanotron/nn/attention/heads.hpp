#pragma once

// Which attention heads a tensor-parallel rank computes.
//
// With at least as many key-value heads as ranks, whole groups (a key-value head and the query heads that
// read it) are dealt out, so nothing is held twice. With fewer, query heads are dealt out evenly and a
// key-value head is held by every rank that has one of its query heads; those ranks hold partial sums of
// its gradient.

#include "nanotron/tensor/shard.hpp"

namespace nanotron::nn {

struct HeadShard {
  Range query{};      // of the model's query heads
  Range key{};        // of the model's key-value heads: all that the query heads read
  Range owned_key{};  // those of key that no lower rank holds
  index_t group = 1;    // query heads per key-value head, in the whole model
};

/// query_heads must be a multiple of key_heads, and at least parts.
HeadShard shard_heads(index_t query_heads, index_t key_heads, int parts, int index);

}  // namespace nanotron::nn
