#pragma once

// GEMMs of small tiles on one host core, for attention: operands in cache, no packing, no library.
// A library GEMM of this size spends most of its time outside its inner loop.

#include <cmath>

#if defined(__AVX512F__) || (defined(__AVX__) && defined(__FMA__))
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#include "nanotron/base/types.hpp"

namespace nanotron::kernels::detail {

// Registers of the host, and an fma of their elements: which the order of a sum in registers is, whatever the compiler
// makes of a product and a sum.
#if defined(__AVX512F__)
inline constexpr index_t register_bytes = 64, register_count = 32;
#elif defined(__AVX__) && defined(__FMA__)
inline constexpr index_t register_bytes = 32, register_count = 16;
#elif defined(__ARM_NEON)
inline constexpr index_t register_bytes = 16, register_count = 32;
#else
inline constexpr index_t register_bytes = 16, register_count = 16;
#endif

template <class M>
inline constexpr index_t register_width = register_bytes / static_cast<index_t>(sizeof(M));

/// A register of M, of which memory is a multiple of sizeof(M).
template <class M>
struct Register {
  typedef M Vec __attribute__((vector_size(register_bytes)));
  typedef M Unaligned __attribute__((vector_size(register_bytes), aligned(sizeof(M)), may_alias));
  Vec of;

  static Register load(const M* from) { return {*reinterpret_cast<const Unaligned*>(from)}; }
  static Register all(M value) { return {value - Vec{}}; }  // also of -0
  void store(M* to) const { *reinterpret_cast<Unaligned*>(to) = of; }
};

/// a b + c, rounded once.
template <class M>
inline Register<M> fma(const Register<M>& a, const Register<M>& b, const Register<M>& c) {
#if defined(__AVX512F__)
  if constexpr (sizeof(M) == 8)
    return {_mm512_fmadd_pd(a.of, b.of, c.of)};
  else
    return {_mm512_fmadd_ps(a.of, b.of, c.of)};
#elif defined(__AVX__) && defined(__FMA__)
  if constexpr (sizeof(M) == 8)
    return {_mm256_fmadd_pd(a.of, b.of, c.of)};
  else
    return {_mm256_fmadd_ps(a.of, b.of, c.of)};
#elif defined(__ARM_NEON)
  if constexpr (sizeof(M) == 8)
    return {vfmaq_f64(c.of, a.of, b.of)};
  else
    return {vfmaq_f32(c.of, a.of, b.of)};
#else
  Register<M> result;
  for (index_t i = 0; i < register_width<M>; ++i) result.of[i] = std::fma(a.of[i], b.of[i], c.of[i]);
  return result;
#endif
}

inline constexpr index_t tile_rows = 6;      // rows of C held in registers
inline constexpr index_t vector_bytes = 64;  // what rows are padded to: one AVX-512 register, two of AVX2, four of NEON
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

// Registers of a row of C: as many as the instruction set leaves beside those of B and a factor.
inline constexpr int row_registers = register_count == 32 ? 4 : 2;

// C (tile_rows, registers) = [C +] A (tile_rows, depth) B (depth, registers): for each element a chain of fma over the
// depth, so that neither the registers nor a division of the depth into calls changes a bit.
template <int registers, class M>
inline void tile_kernel(index_t depth, TileOperand<M> a, const M* b, index_t leading_b, M* c, index_t leading_c,
                        bool accumulate) {
  using Vec = Register<M>;
  constexpr index_t width = register_width<M>;
  Vec sum[tile_rows][registers];
  for (int r = 0; r < tile_rows; ++r) {
    for (int v = 0; v < registers; ++v)
      sum[r][v] = accumulate ? Vec::load(c + r * leading_c + v * width) : Vec::all(M(0));
  }
  for (index_t k = 0; k < depth; ++k) {
    Vec row[registers];
    for (int v = 0; v < registers; ++v) row[v] = Vec::load(b + k * leading_b + v * width);
    for (int r = 0; r < tile_rows; ++r) {
      const Vec factor = Vec::all(a.data[r * a.row_stride + k * a.depth_stride]);
      for (int v = 0; v < registers; ++v) sum[r][v] = fma(factor, row[v], sum[r][v]);
    }
  }
  for (int r = 0; r < tile_rows; ++r) {
    for (int v = 0; v < registers; ++v) sum[r][v].store(c + r * leading_c + v * width);
  }
}

/// f.operator()<registers>(j) for panels of so many registers that cover columns [0, columns), a multiple of
/// vector_width.
template <class M, class F>
void for_each_panel(index_t columns, const F& f) {
  index_t j = 0;
  const auto panels = [&]<int registers>() {
    constexpr index_t width = registers * register_width<M>;
    for (; j + width <= columns; j += width) f.template operator()<registers>(j);
  };
  panels.template operator()<row_registers>();
  if constexpr (row_registers * register_bytes > 2 * vector_bytes) panels.template operator()<2>();
  if constexpr (row_registers * register_bytes > vector_bytes) panels.template operator()<1>();
}

// C (rows, columns) = [C +] A (rows, depth) B (depth, columns). rows is a multiple of tile_rows,
// columns of vector_width; B and C are row-major.
template <class M>
void tile_gemm(index_t rows, index_t columns, index_t depth, TileOperand<M> a, const M* b, index_t leading_b, M* c,
               index_t leading_c, bool accumulate) {
  for_each_panel<M>(columns, [&]<int registers>(index_t j) {
    for (index_t i = 0; i < rows; i += tile_rows) {
      const TileOperand<M> block{a.data + i * a.row_stride, a.row_stride, a.depth_stride};
      tile_kernel<registers>(depth, block, b + j, leading_b, c + i * leading_c + j, leading_c, accumulate);
    }
  });
}

}  // namespace nanotron::kernels::detail
