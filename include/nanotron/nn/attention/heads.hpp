#pragma once

// Which attention heads a tensor-parallel rank computes.
//
//   k >= t   whole groups (a key-value head and the query heads that read it) are distributed: nothing is replicated
//   k < t    query heads are distributed evenly; a key-value head is replicated on every rank that has one of its query
//            heads, and those ranks hold partial sums of its gradient, or gather them (SharedKeys)
//
// with k key-value heads and t tensor-parallel ranks.

#include "nanotron/tensor/shard.hpp"

namespace nanotron::nn {

/// Of the whole model.
struct HeadCounts {
  index_t query = 0, key = 0;
};

struct HeadShard {
  Range query{};      // of the model's query heads
  Range key{};        // of the model's key-value heads: all that these query heads read
  Range owned_key{};  // those of key that no lower rank has
  index_t group = 1;  // query heads per key-value head, in the whole model
};

/// query_heads must be a multiple of key_heads, and at least `shards`, a multiple of parts. Heads are distributed at
/// the boundaries of so many shards as above with t = shards, and a rank has shards / parts neighbouring ones.
HeadShard shard_heads(index_t query_heads, index_t key_heads, int shards, int parts, int index);

/// The largest number of query heads that divides those of each shard, and those that read a key head.
index_t heads_of_piece(index_t query_heads, index_t key_heads, int shards);

}  // namespace nanotron::nn
