#pragma once

// The order of a sum of products of bf16, in fp32, with GemmMode::fixed_order: that of Intel's AMX (TDPBF16PS in
// Intel's Software Developer's Manual, volume 2), which other processors follow with their fma:
//
//   for each 32 terms   even = fma(a30, b30, ... fma(a2, b2, fma(a0, b0, 0)))
//                       odd  = fma(a31, b31, ... fma(a3, b3, fma(a1, b1, 0)))
//                       c = c + (even + odd)
//
// Operands and results of less than 2^-126 become zeros of their sign: results after they were rounded to 24 bits, as
// with FTZ and DAZ of SSE. The last terms of a range that are no 32 are filled up with zeros.

#include <cmath>

#include "nanotron/base/types.hpp"

namespace nanotron::kernels::detail {

inline constexpr index_t pair_terms = 32;
inline constexpr float smallest_normal = 0x1p-126F;

NANOTRON_FUNCTION inline float flushed(float x) { return std::fabs(x) < smallest_normal ? std::copysign(0.0F, x) : x; }

/// x + y of flushed operands, whose sum is exact where it is less than 2^-126.
NANOTRON_FUNCTION inline float add_flushed(float x, float y) { return flushed(x + y); }

/// a b + c; a and b are values of bf16, c is flushed.
NANOTRON_FUNCTION inline float fma_flushed(float a, float b, float c) {
  a = flushed(a), b = flushed(b);
  const float r = std::fma(a, b, c);
  if (std::fabs(r) != smallest_normal) return flushed(r);
  // The sum may have been rounded up from below, to the bits of a subnormal instead of 24. In fp64 the product is
  // exact, and so is the sum with its rounding error (Knuth's TwoSum).
  const double product = static_cast<double>(a) * b, sum = product + c, rest = sum - product;
  const double error = (product - (sum - rest)) + (c - rest);
  constexpr double tie = 0x1p-126 * (1.0 - 0x1p-25);
  const double size = std::fabs(sum), more = sum < 0.0 ? -error : error;
  return size < tie || (size == tie && more < 0.0) ? std::copysign(0.0F, r) : r;
}

/// The sum of `terms` <= pair_terms products; a(i), b(i): their factors, in fp32.
template <class A, class B>
NANOTRON_FUNCTION inline float sum_of_pairs(index_t terms, const A& a, const B& b) {
  float sums[2] = {};
  for (index_t i = 0; i < terms; ++i) sums[i % 2] = fma_flushed(a(i), b(i), sums[i % 2]);
  for (index_t parity = 0; parity < 2; ++parity) {
    if ((terms + 1 - parity) / 2 < pair_terms / 2) sums[parity] += 0.0F;  // -0 of a product that was flushed
  }
  return add_flushed(sums[0], sums[1]);
}

}  // namespace nanotron::kernels::detail
