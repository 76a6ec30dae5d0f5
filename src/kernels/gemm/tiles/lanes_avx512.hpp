#pragma once

// The vectors of bf16_tiles.hpp in registers of AVX-512. On Arm: lanes_neon.hpp, with the same functions.

#if !defined(__clang__)
// g++ 12 sees an uninitialised value in its own intrinsics (its bug 105593).
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "nanotron/base/types.hpp"

namespace nanotron::kernels::bf16_tiles {

using Floats = __m512;  // 16 lanes
using Words = __m512i;  // 16 pairs of bf16
using Half = __m256i;   // 16 bf16
using Mask = __mmask16;
using FirstLanes = __mmask16;  // elements [0, n) of 16 in memory, the others are not touched

inline __mmask32 low_lanes(index_t n) {
  return n >= 32 ? ~__mmask32{0} : n <= 0 ? __mmask32{0} : (__mmask32{1} << n) - 1;
}

// Lanes [0, n), n of any value.
inline Mask lanes_below(index_t n) { return static_cast<Mask>(low_lanes(std::clamp<index_t>(n, 0, 16))); }
inline FirstLanes first_lanes(index_t n) { return lanes_below(n); }
inline Mask lanes_between(index_t begin, index_t end) {
  const Mask before_end = lanes_below(end);
  if (begin <= 0) return before_end;
  return static_cast<Mask>(before_end & ~lanes_below(begin));
}
// Lanes with begin[i] <= number < end[i].
inline Mask lanes_with(std::int32_t number, const std::int32_t* begin, const std::int32_t* end) {
  const Words first = _mm512_loadu_si512(begin), past = _mm512_loadu_si512(end);
  const Words numbers = _mm512_set1_epi32(number);
  return _mm512_mask_cmple_epi32_mask(_mm512_cmpgt_epi32_mask(past, numbers), first, numbers);
}
inline bool any(Mask mask) { return mask != 0; }

inline Floats all(float x) { return _mm512_set1_ps(x); }
inline Floats load(const float* from) { return _mm512_loadu_ps(from); }
inline Floats load(const float* from, FirstLanes part) { return _mm512_maskz_loadu_ps(part, from); }
inline Floats load_or_zero(Mask mask, const float* from) { return _mm512_maskz_loadu_ps(mask, from); }
inline void store(float* to, FirstLanes part, Floats x) { _mm512_mask_storeu_ps(to, part, x); }

inline Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
inline Floats subtract(Floats a, Floats b) { return _mm512_sub_ps(a, b); }
inline Floats multiply(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
inline Floats multiply_add(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }       // a b + c
inline Floats multiply_subtract(Floats a, Floats b, Floats c) { return _mm512_fmsub_ps(a, b, c); }  // a b - c
inline Floats subtract_product(Floats a, Floats b, Floats c) { return _mm512_fnmadd_ps(a, b, c); }  // c - a b
inline Floats kept(Mask mask, Floats x) { return _mm512_maskz_mov_ps(mask, x); }                    // else 0
inline Floats larger(Mask mask, Floats a, Floats b) { return _mm512_mask_max_ps(a, mask, a, b); }   // else a
inline Floats nearest(Floats x) { return _mm512_roundscale_ps(x, 0); }
inline Floats times_power(Floats x, Floats n) { return _mm512_scalef_ps(x, n); }  // x 2^n
inline float largest(Floats x) { return _mm512_reduce_max_ps(x); }
inline float sum(Floats x) { return _mm512_reduce_add_ps(x); }

// The first of 16 or 32 bf16, and zeros.
inline Half load_half(const bf16* from, FirstLanes part) { return _mm256_maskz_loadu_epi16(part, from); }
inline Words load_row(const bf16* from, index_t n) { return _mm512_maskz_loadu_epi16(low_lanes(n), from); }
inline Words no_row() { return _mm512_setzero_si512(); }
inline Half no_half() { return _mm256_setzero_si256(); }
inline void store(bf16* to, Words row) { _mm512_storeu_si512(to, row); }

inline Words pairs(Half even, Half odd) {
  return _mm512_or_si512(_mm512_cvtepu16_epi32(even), _mm512_slli_epi32(_mm512_cvtepu16_epi32(odd), 16));
}

// Reads the cache line at `from`, of which n elements exist.
inline void touch_line(const bf16* from, index_t n) {
  const Words read = load_row(from, n);
  asm volatile("" ::"v"(read));
}

// Rounded to bf16, to nearest even.
inline void store_rounded(bf16* to, FirstLanes part, Floats value) {
  const __m256bh rounded = _mm512_cvtneps_pbh(value);
  __m256i bits;
  std::memcpy(&bits, &rounded, sizeof bits);
  _mm256_mask_storeu_epi16(to, part, bits);
}
inline Floats load_widened(const bf16* from, FirstLanes part) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load_half(from, part)), 16));
}

// 16 x 16 transposition of pairs, in registers.
inline void transpose(Words (&r)[16]) {
  Words t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  for (int i = 0; i < 16; i += 8) {
    for (int j = 0; j < 4; ++j) {
      t[i + j] = _mm512_shuffle_i32x4(r[i + j], r[i + j + 4], 0x88);
      t[i + j + 4] = _mm512_shuffle_i32x4(r[i + j], r[i + j + 4], 0xdd);
    }
  }
  for (int j = 0; j < 8; ++j) {
    r[j] = _mm512_shuffle_i32x4(t[j], t[j + 8], 0x88);
    r[j + 8] = _mm512_shuffle_i32x4(t[j], t[j + 8], 0xdd);
  }
}

}  // namespace nanotron::kernels::bf16_tiles
