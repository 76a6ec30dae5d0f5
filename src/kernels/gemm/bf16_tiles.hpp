#pragma once

// GEMM of packed bf16 tiles, accumulated in fp32: on Intel AMX, else with the bf16 instructions of AVX-512 (AMD from
// Zen 4 on).
// Used by gemm_tiles_host.cpp and attention_tiles_host.cpp where the compiler targets such a processor; empty
// elsewhere.
//
//   A tile   (16 rows, 32 of the depth), row-major                          1 KiB
//   B tile   (16 pairs of the depth, 16 columns, 2 of the pair)             1 KiB
//   C tile   (16, 16) fp32
//
// A packed operand is a sequence of strips of 16 rows (A) or columns (B). A strip is a sequence of
// tiles along the depth, padded with zeros.

#if defined(__AVX512BF16__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#define NANOTRON_HAS_BF16_TILES 1
#if defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__linux__) && !defined(NANOTRON_WITHOUT_AMX)
#define NANOTRON_HAS_AMX 1
#endif

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

inline constexpr index_t tile_extent = 16;  // rows or columns of a tile
inline constexpr index_t tile_depth = 32;
inline constexpr index_t tile_elements = tile_extent * tile_depth;

constexpr index_t tiles(index_t n, index_t extent) { return (n + extent - 1) / extent; }
// Elements of a packed operand of `extent` rows or columns.
constexpr index_t packed_elements(index_t extent, index_t depth) {
  return tiles(extent, 2 * tile_extent) * 2 * tiles(depth, tile_depth) * tile_elements;
}

// 16 x 16 transposition of 32-bit elements, in registers.
inline void transpose(__m512i (&r)[16]) {
  __m512i t[16];
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

inline __mmask32 low_lanes(index_t n) {
  return n >= 32 ? ~__mmask32{0} : n <= 0 ? __mmask32{0} : (__mmask32{1} << n) - 1;
}

// Row r of the 16 rows at `from`, columns [0, columns), as one register; zeros outside.
inline __m512i row_or_zero(const bf16* from, index_t leading, index_t r, index_t rows, index_t columns) {
  if (r >= rows) return _mm512_setzero_si512();
  return _mm512_maskz_loadu_epi16(low_lanes(columns), from + r * leading);
}

// Pairs rows 2p and 2p + 1 of a (depth, extent) block column by column: 16 registers of 16 pairs.
inline void interleave(const bf16* from, index_t leading, index_t depth, index_t extent, __m512i (&r)[16]) {
  const __mmask16 mask = static_cast<__mmask16>(low_lanes(std::min<index_t>(extent, 16)));
  for (index_t p = 0; p < 16; ++p) {
    const auto load = [&](index_t row) {
      return row < depth ? _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, from + row * leading))
                         : _mm512_setzero_si512();
    };
    r[p] = _mm512_or_si512(load(2 * p), _mm512_slli_epi32(load(2 * p + 1), 16));
  }
}

inline void store(const __m512i (&r)[16], bf16* tile) {
  for (int i = 0; i < 16; ++i) _mm512_storeu_si512(tile + i * tile_depth, r[i]);
}

// Reads rows of `columns` elements in the order of their addresses, which the processor recognises and fetches ahead.
// The tiles of 16 or 32 rows at a time then come from the cache: packing from memory takes half of the time. (With
// prefetch instructions in this order it takes as long as without.)
inline void read_in_order(const bf16* from, index_t leading, index_t rows, index_t columns) {
  constexpr index_t line = 32;
  for (index_t r = 0; r < rows; ++r) {
    for (index_t c = 0; c < columns; c += line) {
      const __m512i read = _mm512_maskz_loadu_epi16(low_lanes(columns - c), from + r * leading + c);
      asm volatile("" ::"v"(read));
    }
  }
}
inline constexpr index_t read_columns = 512;  // at a time: with the rows of a tile 32 KiB

// Packs a block stored with its rows along the depth, strip by strip: A (Op::none) into A tiles, or B (Op::transpose)
// into B tiles (swap).
template <bool swap>
void pack_along_depth(const bf16* from, index_t leading, index_t extent, index_t depth, bf16* to) {
  const index_t padded = tiles(extent, 2 * tile_extent) * 2 * tile_extent;
  for (index_t i = 0; i < padded; i += tile_extent) {
    const bf16* const rows = from + i * leading;
    for (index_t k = 0; k < depth; k += tile_depth, to += tile_elements) {
      if (k % read_columns == 0)
        read_in_order(rows + k, leading, std::min(tile_extent, extent - i), std::min(read_columns, depth - k));
      __m512i r[16];
      for (index_t row = 0; row < 16; ++row) r[row] = row_or_zero(rows + k, leading, row, extent - i, depth - k);
      if constexpr (swap) transpose(r);
      store(r, to);
    }
  }
}

// Packs a block stored with its rows across the depth, row by row: B (Op::none) into B tiles, or A (Op::transpose) into
// A tiles (swap).
template <bool swap>
void pack_across_depth(const bf16* from, index_t leading, index_t extent, index_t depth, bf16* to) {
  const index_t padded = tiles(extent, 2 * tile_extent) * 2 * tile_extent;
  const index_t strip = tiles(depth, tile_depth) * tile_elements;
  for (index_t k = 0; k < depth; k += tile_depth, to += tile_elements) {
    const bf16* const rows = from + k * leading;
    for (index_t i = 0; i < padded; i += tile_extent) {
      if (i % read_columns == 0)
        read_in_order(rows + i, leading, std::min(tile_depth, depth - k), std::min(read_columns, extent - i));
      __m512i r[16];
      interleave(rows + i, leading, depth - k, extent - i, r);
      if constexpr (swap) transpose(r);
      store(r, to + i / tile_extent * strip);
    }
  }
}

// What is not padding in a block of C, and in the last tiles of its depth: AVX-512 computes no more than this, by 8
// rows and pairs of the depth. The rows of C after it may be anything.
struct Unpadded {
  index_t rows = 2 * tile_extent, last_depth = tile_depth;
};

#ifdef NANOTRON_HAS_AMX

inline namespace amx {

struct alignas(64) TileConfig {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t bytes_per_row[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
// A constant in memory: g++ 12 declares only the first bytes of a configuration as read and drops
// the stores to the rest of a local one.
inline constexpr TileConfig tile_config;

// Configures the tiles of this thread as above, from construction to destruction.
class TileScope {
 public:
  TileScope() { _tile_loadconfig(&tile_config); }
  ~TileScope() { _tile_release(); }
  TileScope(const TileScope&) = delete;
  TileScope& operator=(const TileScope&) = delete;
};

// C (32, 32) = [C +] two strips of A times two strips of B, over `count` tiles of the depth. C is
// row-major; strips are strip_a and strip_b elements apart.
inline void multiply_block(const bf16* a, index_t strip_a, const bf16* b, index_t strip_b, index_t count, float* c,
                           index_t leading_c, bool accumulate, const Unpadded& = {}) {
  const index_t stride = leading_c * static_cast<index_t>(sizeof(float));
  if (accumulate) {
    _tile_loadd(0, c, stride);
    _tile_loadd(1, c + 16, stride);
    _tile_loadd(2, c + 16 * leading_c, stride);
    _tile_loadd(3, c + 16 * leading_c + 16, stride);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  for (index_t t = 0; t < count; ++t) {
    _tile_loadd(4, a + t * tile_elements, 64);
    _tile_loadd(6, b + t * tile_elements, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, b + strip_b + t * tile_elements, 64);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, a + strip_a + t * tile_elements, 64);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, c, stride);
  _tile_stored(1, c + 16, stride);
  _tile_stored(2, c + 16 * leading_c, stride);
  _tile_stored(3, c + 16 * leading_c + 16, stride);
}

}  // namespace amx

#else

inline namespace avx512 {

class TileScope {
 public:
  TileScope() {}  // nothing to configure
};

inline __m512bh pairs_of(__m512i bits) {
  __m512bh pairs;
  std::memcpy(&pairs, &bits, sizeof pairs);
  return pairs;
}

// As above: 8 rows and 32 columns at a time, whose sums stay in 16 registers.
inline void multiply_block(const bf16* a, index_t strip_a, const bf16* b, index_t strip_b, index_t count, float* c,
                           index_t leading_c, bool accumulate, const Unpadded& part = {}) {
  constexpr index_t height = 8;
  for (index_t first = 0; first < part.rows; first += height) {
    const bf16* const strip = a + first / tile_extent * strip_a + first % tile_extent * tile_depth;
    float* const target = c + first * leading_c;
    __m512 sums[height][2];
    for (index_t r = 0; r < height; ++r) {
      for (index_t j = 0; j < 2; ++j) {
        sums[r][j] = accumulate ? _mm512_loadu_ps(target + r * leading_c + j * 16) : _mm512_setzero_ps();
      }
    }
    if (accumulate) {  // the rows that follow, perhaps of the next block
      for (index_t r = height; r < 2 * height; ++r) {
        for (index_t j = 0; j < 2; ++j) __builtin_prefetch(target + r * leading_c + j * 16, 1);
      }
    }
    const index_t last = (count - 1) * tile_elements;
    for (index_t t = 0; t <= last; t += tile_elements) {
      const index_t depth = t < last ? tile_depth : part.last_depth;
      for (index_t pair = 0; pair < depth; pair += 2) {
        const auto left = pairs_of(_mm512_loadu_si512(b + t + pair * tile_extent));
        const auto right = pairs_of(_mm512_loadu_si512(b + strip_b + t + pair * tile_extent));
        for (index_t r = 0; r < height; ++r) {
          std::int32_t two;
          std::memcpy(&two, strip + t + r * tile_depth + pair, sizeof two);
          const auto both = pairs_of(_mm512_set1_epi32(two));
          sums[r][0] = _mm512_dpbf16_ps(sums[r][0], both, left);
          sums[r][1] = _mm512_dpbf16_ps(sums[r][1], both, right);
        }
      }
    }
    for (index_t r = 0; r < height; ++r) {
      for (index_t j = 0; j < 2; ++j) _mm512_storeu_ps(target + r * leading_c + j * 16, sums[r][j]);
    }
  }
}

}  // namespace avx512

#endif

// 16 floats rounded to bf16, to nearest even.
inline void store_rounded(bf16* to, __mmask16 mask, __m512 value) {
  const __m256bh rounded = _mm512_cvtneps_pbh(value);
  __m256i bits;
  std::memcpy(&bits, &rounded, sizeof bits);
  _mm256_mask_storeu_epi16(to, mask, bits);
}
inline __m512 load_widened(const bf16* from, __mmask16 mask) {
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, from));
  return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

}  // namespace nanotron::kernels::bf16_tiles
#endif
