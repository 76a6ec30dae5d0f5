#pragma once

// Small GEMMs in the order of pair_order.hpp, of bf16 that was widened to fp32, by fma in registers.

#include <algorithm>
#include <cstdint>

#include "kernels/gemm/pair_order.hpp"
#include "kernels/loop/host_tiles.hpp"

namespace nanotron::kernels::detail {

/// The arithmetic of pair_order.hpp by instructions of fp32: from construction to destruction operands and results of
/// fp32 that are subnormal become zeros. Calls between have to be calls: the compiler knows nothing of this state and
/// moves arithmetic, not what may write memory.
class FlushToZero {
 public:
#if defined(__AVX__) && defined(__FMA__)
  FlushToZero() : saved_(_mm_getcsr()) { set(saved_ | flush_results | operands_are_zeros); }
  ~FlushToZero() { set(saved_); }
  static constexpr bool is_always_exact = true;
  /// Whether all results so far are those of pair_order.hpp.
  bool is_exact() const { return true; }

 private:
  static constexpr unsigned flush_results = 0x8000, operands_are_zeros = 0x40;
  static void set(unsigned state) { asm volatile("ldmxcsr %0" : : "m"(state) : "memory"); }
  unsigned saved_;
#elif defined(__aarch64__)
  // A result is flushed here before it is rounded, so one that would round up to 2^-126 differs. Underflow is recorded.
  FlushToZero() {
    asm volatile("mrs %0, fpcr" : "=r"(saved_) : : "memory");
    asm volatile("mrs %0, fpsr" : "=r"(flags_) : : "memory");
    asm volatile("msr fpsr, %0\n\tmsr fpcr, %1" : : "r"(flags_ & ~underflow), "r"(saved_ | flush) : "memory");
  }
  static constexpr bool is_always_exact = false;
  ~FlushToZero() { asm volatile("msr fpsr, %0\n\tmsr fpcr, %1" : : "r"(flags_), "r"(saved_) : "memory"); }
  bool is_exact() const {
    std::uint64_t now = 0;
    asm volatile("mrs %0, fpsr" : "=r"(now) : : "memory");
    return (now & underflow) == 0;
  }

 private:
  static constexpr std::uint64_t flush = std::uint64_t{1} << 24, underflow = std::uint64_t{1} << 3;
  std::uint64_t saved_ = 0, flags_ = 0;
#else
  static constexpr bool is_always_exact = false;
  FlushToZero() {}
  bool is_exact() const { return false; }
#endif

 public:
  FlushToZero(const FlushToZero&) = delete;
  FlushToZero& operator=(const FlushToZero&) = delete;
};

namespace pairs {

// 32 terms or fewer: C (tile_rows, registers) += (even + odd).
template <int registers>
void add_block(index_t terms, TileOperand<float> a, const float* b, index_t leading_b, float* c, index_t leading_c) {
  using Vec = Register<float>;
  constexpr index_t width = registers * register_width<float>;
  alignas(vector_bytes) float sums[2][tile_rows * width];
  for (index_t parity = 0; parity < 2; ++parity) {
    const index_t count = (terms + 1 - parity) / 2;
    tile_kernel<registers, float>(count, {a.data + parity * a.depth_stride, a.row_stride, 2 * a.depth_stride},
                                  b + parity * leading_b, 2 * leading_b, sums[parity], width, false);
    if (count == pair_terms / 2) continue;
    for (float& sum : sums[parity]) sum += 0.0F;  // zeros that fill the tile up make 0 of -0, a flushed product
  }
  for (index_t r = 0; r < tile_rows; ++r) {
    for (index_t j = 0; j < width; j += register_width<float>) {
      const Vec pair{Vec::load(sums[0] + r * width + j).of + Vec::load(sums[1] + r * width + j).of};
      float* const to = c + r * leading_c + j;
      Vec{Vec::load(to).of + pair.of}.store(to);
    }
  }
}

// A call, see FlushToZero.
template <int registers>
[[gnu::noinline]] void add_by_registers(index_t depth, TileOperand<float> a, const float* b, index_t leading_b,
                                        float* c, index_t leading_c) {
  for (index_t k = 0; k < depth; k += pair_terms) {
    add_block<registers>(std::min(pair_terms, depth - k), {a.data + k * a.depth_stride, a.row_stride, a.depth_stride},
                         b + k * leading_b, leading_b, c, leading_c);
  }
}

// By the functions of pair_order.hpp.
inline void add_by_elements(index_t columns, index_t depth, TileOperand<float> a, const float* b, index_t leading_b,
                            float* c, index_t leading_c) {
  for (index_t r = 0; r < tile_rows; ++r) {
    for (index_t j = 0; j < columns; ++j) {
      float sum = flushed(c[r * leading_c + j]);
      for (index_t k = 0; k < depth; k += pair_terms) {
        sum = add_flushed(sum, sum_of_pairs(
                                   std::min(pair_terms, depth - k),
                                   [=](index_t i) { return a.data[r * a.row_stride + (k + i) * a.depth_stride]; },
                                   [=](index_t i) { return b[(k + i) * leading_b + j]; }));
      }
      c[r * leading_c + j] = sum;
    }
  }
}

// One tile of C, computed again by elements where registers flushed what they should not.
template <int registers>
void add_tile(index_t depth, TileOperand<float> a, const float* b, index_t leading_b, float* c, index_t leading_c) {
  constexpr index_t width = registers * register_width<float>;
  alignas(vector_bytes) float before[tile_rows][width];
  bool is_exact = false;
  {  // single operations have subnormal numbers
    const FlushToZero flush;
    if constexpr (!FlushToZero::is_always_exact) {
      for (index_t r = 0; r < tile_rows; ++r) std::copy_n(c + r * leading_c, width, before[r]);
    }
    add_by_registers<registers>(depth, a, b, leading_b, c, leading_c);
    is_exact = flush.is_exact();
  }
  if (is_exact) return;
  for (index_t r = 0; r < tile_rows; ++r) std::copy_n(before[r], width, c + r * leading_c);
  add_by_elements(width, depth, a, b, leading_b, c, leading_c);
}

}  // namespace pairs

/// C (rows, columns) += A (rows, depth) B (depth, columns) in blocks of 32 of the depth. rows is a multiple of
/// tile_rows, columns of vector_width; B and C are row-major.
inline void add_pairs(index_t rows, index_t columns, index_t depth, TileOperand<float> a, const float* b,
                      index_t leading_b, float* c, index_t leading_c) {
  for_each_panel<float>(columns, [&]<int registers>(index_t j) {
    for (index_t i = 0; i < rows; i += tile_rows) {
      pairs::add_tile<registers>(depth, {a.data + i * a.row_stride, a.row_stride, a.depth_stride}, b + j, leading_b,
                                 c + i * leading_c + j, leading_c);
    }
  });
}

}  // namespace nanotron::kernels::detail
