#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "nanotron/kernels/attention/attention_gpu.hpp"
#include "nanotron/kernels/gemm/gemm.hpp"

// Of the blocked attention: its workspace, its blocks of queries and keys, the shapes of its batched GEMMs.

namespace nanotron::kernels::blocked {

inline constexpr index_t query_block = 256;
inline constexpr index_t key_block = 256;
inline constexpr index_t ordered_key_block =
    192;  // with GemmMode::fixed_order: that of a host, a multiple of its tiles
inline constexpr index_t score_elements = query_block * key_block;

// The workspace of one call, partitioned into buffers; a null base only counts bytes. Elements of
// head n start at n times the extent of one head.
template <class T>
struct Pieces {
  using M = master_t<T>;

  Pieces(std::byte* base, const AttentionShape& s, bool backward) : base_(base) {
    const index_t heads = s.batch * s.query_heads;
    for (auto** list : {&input_a, &input_b, &input_c, &rounded}) *list = take<const T*>(heads);
    for (auto** list : {&output_a, &output_b, &output_c}) *list = take<M*>(heads);
    scores = take<M>(heads * score_elements);
    p = take<T>(heads * score_elements);
    rows = take<M>(heads * query_block * s.head_dim);
    max = take<M>(heads * query_block);
    sum = take<M>(heads * query_block);
    if (backward) {
      dp = take<M>(heads * score_elements);
      ds = take<T>(heads * score_elements);
      dot = take<M>(heads * s.query_length);
      dkey = take<M>(heads * s.key_length * s.head_dim);
      dvalue = take<M>(heads * s.key_length * s.head_dim);
    }
  }

  const T **input_a, **input_b, **input_c, **rounded;
  M **output_a, **output_b, **output_c;
  M *scores, *rows, *max, *sum;
  M *dp = nullptr, *dot = nullptr, *dkey = nullptr, *dvalue = nullptr;
  T *p, *ds = nullptr;
  std::size_t bytes = 0;

 private:
  template <class E>
  E* take(index_t n) {
    std::byte* const piece = base_ == nullptr ? nullptr : base_ + bytes;
    bytes += (static_cast<std::size_t>(n) * sizeof(E) + 255) / 256 * 256;
    return reinterpret_cast<E*>(piece);
  }
  std::byte* base_;
};

// A block of queries and a block of keys.
struct Block {
  index_t first_query, queries, first_key, keys;
};

// Rows of head n = sequence * query_heads + query head.
struct Heads {
  AttentionShape s;
  NANOTRON_FUNCTION index_t sequence(index_t n) const { return n / s.query_heads; }
  NANOTRON_FUNCTION index_t head(index_t n) const { return n % s.query_heads; }
  template <class E>
  NANOTRON_FUNCTION E* query(MatrixRef<E> x, index_t n, index_t i) const {
    return x.data + (sequence(n) * s.query_row_stride() + i) * x.leading + head(n) * s.head_dim;
  }
  template <class E>
  NANOTRON_FUNCTION E* key(MatrixRef<E> x, index_t n, index_t j) const {
    return x.data + (sequence(n) * s.key_row_stride() + j) * x.leading + s.key_head_of(head(n)) * s.head_dim;
  }
  // Keys of the block that its query i of head n attends to, counted from the block's first key.
  NANOTRON_FUNCTION Range seen(const Block& b, index_t n, index_t i) const {
    return s.keys_of(sequence(n), b.first_query + i, b.first_key, b.keys);
  }
};

template <class F>
void for_each_block(const Device& device, const AttentionShape& s, index_t first_query, index_t queries, const F& f) {
  const index_t block = device.gemm_mode() == GemmMode::fixed_order ? ordered_key_block : key_block;
  const index_t causal = s.query_position + first_query + queries - s.key_position;
  const index_t keys_seen = std::min(causal, s.key_length);
  const index_t oldest = s.window > 0 ? s.query_position + first_query + 1 - s.window - s.key_position : 0;
  for (index_t first = std::max<index_t>(oldest, 0) / block * block; first < keys_seen; first += block) {
    f(Block{first_query, queries, first, std::min(block, keys_seen - first)});
  }
}

// Bytes of `columns` elements of E for each of a number of rows.
template <class E>
double bytes_of_rows(index_t rows, index_t columns) {
  return static_cast<double>(rows) * static_cast<double>(columns) * static_cast<double>(sizeof(E));
}

// Of all operands of the batched GEMMs, in bytes: heads, at the first rows of sequences and blocks in the matrices, or
// in the workspace.
template <class T>
std::size_t alignment_of(const AttentionShape& s, const Pieces<T>& w, std::initializer_list<MatrixRef<const T>> all) {
  const index_t rows = query_block | key_block | (s.batch > 1 ? s.query_row_stride() | s.key_row_stride() : 0);
  index_t elements = s.head_dim;
  auto bits = reinterpret_cast<std::uintptr_t>(w.input_a);
  for (const MatrixRef<const T>& x : all) {
    elements |= rows * x.leading;
    bits |= reinterpret_cast<std::uintptr_t>(x.data);
  }
  bits |= static_cast<std::uintptr_t>(elements) * sizeof(T);
  return bits & (~bits + 1);
}

// Query block by key block: S = scale Q K^T and, with dO and V, dP.
inline BatchedShape scores_shape(const Block& b, index_t d, index_t leading_q, index_t leading_k, double scale,
                                 std::size_t alignment) {
  return {.op_b = Op::transpose,
          .m = b.queries,
          .n = b.keys,
          .k = d,
          .leading_a = leading_q,
          .leading_b = leading_k,
          .leading_c = key_block,
          .alpha = scale,
          .alignment = alignment};
}

// Added to rows of queries: P V and, with dS and K, dS K.
inline BatchedShape query_rows_shape(const Block& b, index_t d, index_t leading_k, std::size_t alignment) {
  return {.m = b.queries,
          .n = d,
          .k = b.keys,
          .leading_a = key_block,
          .leading_b = leading_k,
          .leading_c = d,
          .beta = 1,
          .alignment = alignment};
}

}  // namespace nanotron::kernels::blocked
