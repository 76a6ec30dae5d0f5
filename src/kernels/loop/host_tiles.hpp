#pragma once

// GEMMs of small tiles on one host core, for attention: operands in cache, no packing, no library.
// A library GEMM of this size spends most of its time outside its inner loop.

#include "nanotron/base/types.hpp"

namespace nanotron::kernels::detail {

inline constexpr index_t tile_rows = 6;      // rows of C held in registers
inline constexpr index_t vector_bytes = 64;  // one AVX-512 register, two of AVX2, four of NEON
template <class M>
inline constexpr index_t vector_width = vector_bytes / static_cast<index_t>(sizeof(M));

constexpr index_t round_up(index_t n, index_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// Operand A, with any strides: a transpose is free. Element (i, k) is
// data[i * row_stride + k * depth_stride].
template <class M>
struct TileOperand {
  const M* data;
  index_t row_stride;
  index_t depth_stride;
};

template <int vectors, class M>
inline void tile_kernel(index_t depth, TileOperand<M> a, const M* b, index_t leading_b, M* c, index_t leading_c,
                        bool accumulate) {
  typedef M Vec __attribute__((vector_size(vector_bytes), aligned(sizeof(M)), may_alias));
  constexpr index_t width = vector_width<M>;
  Vec sum[tile_rows][vectors];
  for (int r = 0; r < tile_rows; ++r) {
    for (int v = 0; v < vectors; ++v) {
      sum[r][v] = accumulate ? *reinterpret_cast<const Vec*>(c + r * leading_c + v * width) : Vec{};
    }
  }
  for (index_t k = 0; k < depth; ++k) {
    Vec row[vectors];
    for (int v = 0; v < vectors; ++v) {
      row[v] = *reinterpret_cast<const Vec*>(b + k * leading_b + v * width);
    }
    for (int r = 0; r < tile_rows; ++r) {
      const M factor = a.data[r * a.row_stride + k * a.depth_stride];
      for (int v = 0; v < vectors; ++v) sum[r][v] += factor * row[v];
    }
  }
  for (int r = 0; r < tile_rows; ++r) {
    for (int v = 0; v < vectors; ++v) {
      *reinterpret_cast<Vec*>(c + r * leading_c + v * width) = sum[r][v];
    }
  }
}

// C (rows, columns) = [C +] A (rows, depth) B (depth, columns). rows is a multiple of tile_rows,
// columns of vector_width; B and C are row-major.
template <class M>
void tile_gemm(index_t rows, index_t columns, index_t depth, TileOperand<M> a, const M* b, index_t leading_b, M* c,
               index_t leading_c, bool accumulate) {
  constexpr index_t width = vector_width<M>;
  index_t j = 0;
  const auto panel = [&]<int vectors>() {
    for (; j + vectors * width <= columns; j += vectors * width) {
      for (index_t i = 0; i < rows; i += tile_rows) {
        const TileOperand<M> block{a.data + i * a.row_stride, a.row_stride, a.depth_stride};
        tile_kernel<vectors>(depth, block, b + j, leading_b, c + i * leading_c + j, leading_c, accumulate);
      }
    }
  };
  panel.template operator()<4>();
  panel.template operator()<2>();
  panel.template operator()<1>();
}

}  // namespace nanotron::kernels::detail
