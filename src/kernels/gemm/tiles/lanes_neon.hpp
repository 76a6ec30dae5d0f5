#pragma once

// The vectors of bf16_tiles.hpp in four registers of NEON each. On x86: lanes_avx512.hpp, with the same functions.

#include <arm_neon.h>

#include <algorithm>
#include <cstring>

#include "nanotron/base/types.hpp"

namespace nanotron::kernels::bf16_tiles {

struct Floats {  // 16 lanes
  float32x4_t v[4];
};
struct Words {  // 16 pairs of bf16
  uint32x4_t v[4];
};
struct Half {  // 16 bf16
  uint16x8_t v[2];
};
struct Mask {  // all bits of a lane, or none
  uint32x4_t v[4];
};
struct FirstLanes {  // elements [0, n) of 16 in memory, the others are not touched
  index_t n;
};

// Result of f(i) in register i.
template <class V, class F>
[[gnu::always_inline]] inline V registers(const F& f) {
  return {{f(0), f(1), f(2), f(3)}};
}
inline int32x4_t lane_numbers(int i) {
  constexpr std::int32_t first[4] = {0, 1, 2, 3};
  return vaddq_s32(vld1q_s32(first), vdupq_n_s32(4 * i));
}

// Lanes [0, n), n of any value.
inline Mask lanes_below(index_t n) {
  const int32x4_t end = vdupq_n_s32(static_cast<std::int32_t>(std::clamp<index_t>(n, 0, 16)));
  return registers<Mask>([=](int i) { return vcltq_s32(lane_numbers(i), end); });
}
inline FirstLanes first_lanes(index_t n) { return {std::clamp<index_t>(n, 0, 16)}; }
inline Mask lanes_between(index_t begin, index_t end) {
  const Mask before_end = lanes_below(end), before_begin = lanes_below(begin);
  return registers<Mask>([&](int i) { return vbicq_u32(before_end.v[i], before_begin.v[i]); });
}
// Lanes with begin[i] <= number < end[i].
inline Mask lanes_with(std::int32_t number, const std::int32_t* begin, const std::int32_t* end) {
  const int32x4_t numbers = vdupq_n_s32(number);
  return registers<Mask>([=](int i) {
    return vandq_u32(vcleq_s32(vld1q_s32(begin + 4 * i), numbers), vcgtq_s32(vld1q_s32(end + 4 * i), numbers));
  });
}
inline bool any(const Mask& mask) {
  return vmaxvq_u32(vorrq_u32(vorrq_u32(mask.v[0], mask.v[1]), vorrq_u32(mask.v[2], mask.v[3]))) != 0;
}

inline Floats all(float x) {
  return registers<Floats>([=](int) { return vdupq_n_f32(x); });
}
inline Floats load(const float* from) {
  return registers<Floats>([=](int i) { return vld1q_f32(from + 4 * i); });
}
inline Floats load(const float* from, FirstLanes part) {
  if (part.n == 16) return load(from);
  float lanes[16] = {};
  std::memcpy(lanes, from, static_cast<std::size_t>(part.n) * sizeof(float));
  return load(lanes);
}
inline void store(float* to, FirstLanes part, const Floats& x) {
  if (part.n == 16) {
    for (int i = 0; i < 4; ++i) vst1q_f32(to + 4 * i, x.v[i]);
    return;
  }
  float lanes[16];
  for (int i = 0; i < 4; ++i) vst1q_f32(lanes + 4 * i, x.v[i]);
  std::memcpy(to, lanes, static_cast<std::size_t>(part.n) * sizeof(float));
}

inline Floats add(const Floats& a, const Floats& b) {
  return registers<Floats>([&](int i) { return vaddq_f32(a.v[i], b.v[i]); });
}
inline Floats subtract(const Floats& a, const Floats& b) {
  return registers<Floats>([&](int i) { return vsubq_f32(a.v[i], b.v[i]); });
}
inline Floats multiply(const Floats& a, const Floats& b) {
  return registers<Floats>([&](int i) { return vmulq_f32(a.v[i], b.v[i]); });
}
inline Floats multiply_add(const Floats& a, const Floats& b, const Floats& c) {  // a b + c
  return registers<Floats>([&](int i) { return vfmaq_f32(c.v[i], a.v[i], b.v[i]); });
}
inline Floats multiply_subtract(const Floats& a, const Floats& b, const Floats& c) {  // a b - c
  return registers<Floats>([&](int i) { return vfmaq_f32(vnegq_f32(c.v[i]), a.v[i], b.v[i]); });
}
inline Floats subtract_product(const Floats& a, const Floats& b, const Floats& c) {  // c - a b
  return registers<Floats>([&](int i) { return vfmsq_f32(c.v[i], a.v[i], b.v[i]); });
}
inline Floats kept(const Mask& mask, const Floats& x) {  // else 0
  return registers<Floats>(
      [&](int i) { return vreinterpretq_f32_u32(vandq_u32(mask.v[i], vreinterpretq_u32_f32(x.v[i]))); });
}
// Of memory that can be read in all lanes.
inline Floats load_or_zero(const Mask& mask, const float* from) { return kept(mask, load(from)); }
inline Floats larger(const Mask& mask, const Floats& a, const Floats& b) {  // else a
  return registers<Floats>([&](int i) { return vbslq_f32(mask.v[i], vmaxq_f32(a.v[i], b.v[i]), a.v[i]); });
}
inline Floats nearest(const Floats& x) {
  return registers<Floats>([&](int i) { return vrndnq_f32(x.v[i]); });
}
// x 2^n, x of about 1: beyond the exponents of float 0 or infinity. In two factors, each of which is a float.
inline Floats times_power(const Floats& x, const Floats& n) {
  return registers<Floats>([&](int i) {
    const auto power = [](int32x4_t e) {
      return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(e, vdupq_n_s32(127)), 23));
    };
    const int32x4_t bounded = vminq_s32(vmaxq_s32(vcvtq_s32_f32(n.v[i]), vdupq_n_s32(-252)), vdupq_n_s32(254));
    const int32x4_t half = vshrq_n_s32(bounded, 1);
    return vmulq_f32(vmulq_f32(x.v[i], power(half)), power(vsubq_s32(bounded, half)));
  });
}
inline float largest(const Floats& x) {
  return vmaxvq_f32(vmaxq_f32(vmaxq_f32(x.v[0], x.v[1]), vmaxq_f32(x.v[2], x.v[3])));
}
inline float sum(const Floats& x) {
  return vaddvq_f32(vaddq_f32(vaddq_f32(x.v[0], x.v[1]), vaddq_f32(x.v[2], x.v[3])));
}

// The first of 16 or 32 bf16, and zeros.
inline Half load_half(const bf16* from, FirstLanes lanes) {
  std::uint16_t part[16] = {};
  const auto* elements = reinterpret_cast<const std::uint16_t*>(from);
  if (lanes.n < 16) {
    std::memcpy(part, from, static_cast<std::size_t>(lanes.n) * sizeof(bf16));
    elements = part;
  }
  return {{vld1q_u16(elements), vld1q_u16(elements + 8)}};
}
inline Words load_row(const bf16* from, index_t n) {
  std::uint16_t part[32] = {};
  const auto* elements = reinterpret_cast<const std::uint16_t*>(from);
  if (n < 32) {
    if (n > 0) std::memcpy(part, from, static_cast<std::size_t>(n) * sizeof(bf16));
    elements = part;
  }
  return registers<Words>([=](int i) { return vreinterpretq_u32_u16(vld1q_u16(elements + 8 * i)); });
}
inline Words no_row() {
  return registers<Words>([](int) { return vdupq_n_u32(0); });
}
inline Half no_half() { return {{vdupq_n_u16(0), vdupq_n_u16(0)}}; }
inline void store(bf16* to, const Words& row) {
  auto* const elements = reinterpret_cast<std::uint16_t*>(to);
  for (int i = 0; i < 4; ++i) vst1q_u16(elements + 8 * i, vreinterpretq_u16_u32(row.v[i]));
}

inline Words pairs(const Half& even, const Half& odd) {
  return registers<Words>([&](int i) {
    const uint16x8_t a = even.v[i / 2], b = odd.v[i / 2];
    return vreinterpretq_u32_u16(i % 2 == 0 ? vzip1q_u16(a, b) : vzip2q_u16(a, b));
  });
}

// Reads the cache line at `from`, of which n elements exist.
inline void touch_line(const bf16* from, index_t) {
  const std::uint16_t read = from->bits;
  asm volatile("" ::"r"(read));
}

// Rounded to bf16, to nearest even.
inline void store_rounded(bf16* to, FirstLanes part, const Floats& value) {
  for (int i = 0; i < 2; ++i) {
    const bfloat16x8_t low = vcvtq_low_bf16_f32(value.v[2 * i]);
    const uint16x8_t bits = vreinterpretq_u16_bf16(vcvtq_high_bf16_f32(low, value.v[2 * i + 1]));
    const index_t here = std::clamp<index_t>(part.n - 8 * i, 0, 8);
    if (here == 8) {
      vst1q_u16(reinterpret_cast<std::uint16_t*>(to + 8 * i), bits);
    } else if (here > 0) {
      std::memcpy(to + 8 * i, &bits, static_cast<std::size_t>(here) * sizeof(bf16));
    }
  }
}
inline Floats load_widened(const bf16* from, FirstLanes part) {
  const Half half = load_half(from, part);
  return registers<Floats>([&](int i) {
    const uint16x8_t eight = half.v[i / 2];
    return vreinterpretq_f32_u16(i % 2 == 0 ? vzip1q_u16(vdupq_n_u16(0), eight) : vzip2q_u16(vdupq_n_u16(0), eight));
  });
}

// 16 x 16 transposition of pairs: of 4 x 4 blocks, each in registers.
inline void transpose(Words (&r)[16]) {
  const auto block = [&](int row, int column, uint32x4_t(&to)[4]) {
    const auto wide = [](uint32x4_t x) { return vreinterpretq_u64_u32(x); };
    const uint32x4_t a = r[row].v[column], b = r[row + 1].v[column], c = r[row + 2].v[column], d = r[row + 3].v[column];
    const uint64x2_t ab = wide(vzip1q_u32(a, b)), cd = wide(vzip1q_u32(c, d));
    const uint64x2_t ab_high = wide(vzip2q_u32(a, b)), cd_high = wide(vzip2q_u32(c, d));
    to[0] = vreinterpretq_u32_u64(vzip1q_u64(ab, cd));
    to[1] = vreinterpretq_u32_u64(vzip2q_u64(ab, cd));
    to[2] = vreinterpretq_u32_u64(vzip1q_u64(ab_high, cd_high));
    to[3] = vreinterpretq_u32_u64(vzip2q_u64(ab_high, cd_high));
  };
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j <= i; ++j) {
      uint32x4_t below[4], above[4];
      block(4 * i, j, below);
      block(4 * j, i, above);
      for (int k = 0; k < 4; ++k) {
        r[4 * j + k].v[i] = below[k];
        r[4 * i + k].v[j] = above[k];
      }
    }
  }
}

}  // namespace nanotron::kernels::bf16_tiles
