#pragma once

// GEMM of packed bf16 tiles, accumulated in fp32: on Intel AMX, else with the bf16 instructions of AVX-512 (AMD from
// Zen 4 on) or of Arm (Neoverse V1, V2 of Grace, N2).
// Used by gemm_tiles_host.cpp and attention_tiles_host.cpp where the compiler targets such a processor; empty
// elsewhere.
//
//   A tile   (16 rows, 32 of the depth), row-major                          1 KiB
//   B tile   (16 pairs of the depth, 16 columns, 2 of the pair)             1 KiB
//   C tile   (16, 16) fp32
//
// A packed operand is a sequence of strips of 16 rows (A) or columns (B). A strip is a sequence of
// tiles along the depth, padded with zeros.
//
// Packing and layout are shared; the vectors in registers (tiles/lanes_*.hpp) and multiply_block are of each processor.

#if defined(__AVX512BF16__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#define NANOTRON_HAS_BF16_TILES 1
// The second name is that of clang before 17.
#if (defined(__AMX_BF16__) || defined(__AMXBF16__)) && defined(__linux__) && !defined(NANOTRON_WITHOUT_AMX)
#define NANOTRON_HAS_AMX 1
#endif
#include "kernels/gemm/tiles/lanes_avx512.hpp"
#elif defined(__aarch64__) && defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#define NANOTRON_HAS_BF16_TILES 1
#include "kernels/gemm/tiles/lanes_neon.hpp"
#endif

#ifdef NANOTRON_HAS_BF16_TILES
namespace nanotron::kernels::bf16_tiles {

inline constexpr index_t tile_extent = 16;  // rows or columns of a tile
inline constexpr index_t tile_depth = 32;
inline constexpr index_t tile_elements = tile_extent * tile_depth;

constexpr index_t tiles(index_t n, index_t extent) { return (n + extent - 1) / extent; }
// Elements of a packed operand of `extent` rows or columns.
constexpr index_t packed_elements(index_t extent, index_t depth) {
  return tiles(extent, 2 * tile_extent) * 2 * tiles(depth, tile_depth) * tile_elements;
}

// Row r of the 16 rows at `from`, columns [0, columns), as one register; zeros outside.
inline Words row_or_zero(const bf16* from, index_t leading, index_t r, index_t rows, index_t columns) {
  if (r >= rows) return no_row();
  return load_row(from + r * leading, columns);
}

// Pairs rows 2p and 2p + 1 of a (depth, extent) block column by column: 16 registers of 16 pairs.
inline void interleave(const bf16* from, index_t leading, index_t depth, index_t extent, Words (&r)[16]) {
  const FirstLanes part = first_lanes(extent);
  for (index_t p = 0; p < 16; ++p) {
    const auto half = [&](index_t row) { return row < depth ? load_half(from + row * leading, part) : no_half(); };
    r[p] = pairs(half(2 * p), half(2 * p + 1));
  }
}

inline void store(const Words (&r)[16], bf16* tile) {
  for (int i = 0; i < 16; ++i) store(tile + i * tile_depth, r[i]);
}

// Reads rows of `columns` elements in the order of their addresses, which the processor recognises and fetches ahead.
// The tiles of 16 or 32 rows at a time then come from the cache: packing from memory takes half of the time. (With
// prefetch instructions in this order it takes as long as without.)
inline void read_in_order(const bf16* from, index_t leading, index_t rows, index_t columns) {
  constexpr index_t line = 32;
  for (index_t r = 0; r < rows; ++r) {
    for (index_t c = 0; c < columns; c += line) touch_line(from + r * leading + c, columns - c);
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
      Words r[16];
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
      Words r[16];
      interleave(rows + i, leading, depth - k, extent - i, r);
      if constexpr (swap) transpose(r);
      store(r, to + i / tile_extent * strip);
    }
  }
}

// What is not padding in a block of C, and in the last tiles of its depth: AVX-512 and NEON compute no more than
// this, by 8 rows and pairs (NEON: 4) of the depth. The rows of C after it may be anything.
struct Unpadded {
  index_t rows = 2 * tile_extent, last_depth = tile_depth;
};

#if defined(NANOTRON_HAS_AMX)

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

#elif defined(__x86_64__)

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

#else

// By BFMMLA, which adds to a (2, 2) block of C the product of 2 rows and 2 columns
// over 4 of the depth. (Where vectors of SVE are longer than those of NEON, processors with bf16 have fewer of them:
// Neoverse V1 multiplies as much by either.)
//
//   A operand   rows r, r + 1: the quad of each       halves of two rows of an A tile, joined
//   B operand   columns c, c + 1: the quad of each    words of two rows of a B tile (pairs of the depth), alternating
//
// Joined in registers, 8 times for 16 BFMMLA: processors with four vector units (Neoverse V1, V2) multiply in two of
// them. The speed has not been measured.
inline namespace neon {

class TileScope {
 public:
  TileScope() {}  // nothing to configure
};

inline constexpr int edge = 8;  // rows and columns of C whose sums stay in 16 registers

// The sums of an (8, 8) block of C, as (2, 2) blocks.
struct Sums {
  float32x4_t of[edge / 2][edge / 2];

  void load(const float* c, index_t leading) {
    for (int i = 0; i < edge / 2; ++i) {
      for (int j = 0; j < edge / 2; ++j) {
        const float* const corner = c + 2 * i * leading + 2 * j;
        of[i][j] = vcombine_f32(vld1_f32(corner), vld1_f32(corner + leading));
      }
    }
  }
  void clear() {
    for (auto& row : of) {
      for (float32x4_t& block : row) block = vdupq_n_f32(0.0f);
    }
  }
  void store(float* c, index_t leading) const {
    for (int i = 0; i < edge / 2; ++i) {
      for (int j = 0; j < edge / 2; ++j) {
        float* const corner = c + 2 * i * leading + 2 * j;
        vst1_f32(corner, vget_low_f32(of[i][j]));
        vst1_f32(corner + leading, vget_high_f32(of[i][j]));
      }
    }
  }
};

// Adds a quad of the depth: a is in the first row of an A tile, b in the first pair of a B tile.
[[gnu::always_inline]] inline void add_quad(const bf16* a, const bf16* b, Sums& sums) {
  const auto at = [](const bf16* from) { return reinterpret_cast<const std::uint16_t*>(from); };
  bfloat16x8_t rows[edge / 2];
  for (int i = 0; i < edge / 2; ++i) {
    const bf16* const row = a + 2 * i * tile_depth;
    rows[i] = vreinterpretq_bf16_u16(vcombine_u16(vld1_u16(at(row)), vld1_u16(at(row + tile_depth))));
  }
  for (int j = 0; j < edge / 2; j += 2) {
    const uint32x4_t even = vreinterpretq_u32_u16(vld1q_u16(at(b + 4 * j)));
    const uint32x4_t odd = vreinterpretq_u32_u16(vld1q_u16(at(b + tile_depth + 4 * j)));
    const bfloat16x8_t left = vreinterpretq_bf16_u32(vzip1q_u32(even, odd));
    const bfloat16x8_t right = vreinterpretq_bf16_u32(vzip2q_u32(even, odd));
    for (int i = 0; i < edge / 2; ++i) {
      sums.of[i][j] = vbfmmlaq_f32(sums.of[i][j], rows[i], left);
      sums.of[i][j + 1] = vbfmmlaq_f32(sums.of[i][j + 1], rows[i], right);
    }
  }
}

// As above: 8 rows and 8 columns at a time.
inline void multiply_block(const bf16* a, index_t strip_a, const bf16* b, index_t strip_b, index_t count, float* c,
                           index_t leading_c, bool accumulate, const Unpadded& part = {}) {
  const index_t last = (count - 1) * tile_elements;
  for (index_t row = 0; row < part.rows; row += edge) {
    const bf16* const of_a = a + row / tile_extent * strip_a + row % tile_extent * tile_depth;
    for (index_t column = 0; column < 2 * tile_extent; column += edge) {
      const bf16* const of_b = b + column / tile_extent * strip_b + column % tile_extent * 2;
      float* const target = c + row * leading_c + column;
      Sums sums;
      if (accumulate) {
        sums.load(target, leading_c);
      } else {
        sums.clear();
      }
      for (index_t t = 0; t <= last; t += tile_elements) {
        const index_t depth = t < last ? tile_depth : part.last_depth;
        for (index_t k = 0; k < depth; k += 4) add_quad(of_a + t + k, of_b + t + k * tile_extent, sums);
      }
      sums.store(target, leading_c);
    }
  }
}

}  // namespace neon

#endif

}  // namespace nanotron::kernels::bf16_tiles
#endif
