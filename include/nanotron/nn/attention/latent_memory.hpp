#pragma once

// What multi-head latent attention keeps and overwrites in addition to nn/attention/attention.hpp.

#include "nanotron/base/types.hpp"
#include "nanotron/kernels/attention/attention.hpp"
#include "nanotron/kernels/attention/latent.hpp"

namespace nanotron::nn {

/// Sizes on a rank. The compressed tokens of a layer are one matrix with the columns
///   c_q (query_rank) | c_kv (key_value_rank) | k_rope (heads.rope)
struct LatentSizes {
  index_t query_rank = 0;  // 0: queries are projected from the hidden states
  index_t key_value_rank = 0;
  kernels::LatentHeads heads{};

  index_t columns() const { return query_rank + key_value_rank + heads.rope; }
  index_t query_columns() const { return heads.heads * heads.width(); }
  index_t key_value_columns() const { return heads.heads * (heads.nope + heads.value); }
  index_t value_columns() const { return heads.heads * heads.value; }
  index_t cached_columns() const { return key_value_rank + heads.rope; }

  template <class E>
  MatrixRef<E> query_of(MatrixRef<E> m) const {
    return m.column_block(0, query_rank);
  }
  template <class E>
  MatrixRef<E> key_value_of(MatrixRef<E> m) const {
    return m.column_block(query_rank, key_value_rank);
  }
  template <class E>
  MatrixRef<E> rope_of(MatrixRef<E> m) const {
    return m.column_block(query_rank + key_value_rank, heads.rope);
  }
};

/// Attention of generation, to the cached tokens, for the heads of `shape`.
kernels::AttentionShape absorbed_shape(kernels::AttentionShape shape, const LatentSizes& sizes);

/// Of one layer. Rows are those of the hidden states on this rank.
template <class T>
struct CompressedActivations {
  using M = master_t<T>;
  Matrix<T> raw;                             // (rows, compressed columns), before the norms
  Matrix<T> normed;                          // after them; k_rope as in raw
  Matrix<M> query_rstd{}, key_value_rstd{};  // (rows, 1)
};

/// Shared by all layers.
template <class T>
struct CompressedWorkspace {
  Matrix<T> query;       // (tokens, query columns): the projections of queries, or their gradient
  Matrix<T> key_value;   // (tokens, key_value columns): the same of k_nope | v of each head
  Matrix<T> value;       // (tokens, value columns): the heads' output without padding, or its gradient
  Matrix<T> gradient{};  // (rows, compressed columns): of raw
  // Of generation: queries in the space of the cached keys, and the attention's output there, for each head
  Matrix<T> absorbed_query{}, absorbed_out{};  // (tokens, heads x cached columns)
  Vector<std::byte> absorbed_tiles{};          // kernels::attention_workspace_bytes
};

}  // namespace nanotron::nn
