#pragma once

// IEEE 754 binary16, for communication: 11 bits of precision from 2^-14 to 65504, fewer down to 2^-24.

#include "nanotron/base/types.hpp"

namespace nanotron {

/// A storage type of two bytes on every platform. Arithmetic is in float.
/// float -> fp16 rounds to nearest, ties to even; a NaN stays a (quiet) NaN, overflow gives infinity.
struct fp16 {
  std::uint16_t bits;

  fp16() = default;
  NANOTRON_FUNCTION explicit fp16(float value) : bits(round_from(value)) {}
  NANOTRON_FUNCTION operator float() const { return widened(bits); }  // NOLINT(google-explicit-constructor): exact
  NANOTRON_FUNCTION static fp16 from_bits(std::uint16_t raw) {
    fp16 value;
    value.bits = raw;
    return value;
  }

 private:
  NANOTRON_FUNCTION static std::uint32_t bits_of(float x) {
    std::uint32_t u;
    std::memcpy(&u, &x, sizeof u);
    return u;
  }
  NANOTRON_FUNCTION static float value_of(std::uint32_t u) {
    float x;
    std::memcpy(&x, &u, sizeof x);
    return x;
  }

  // Both without a branch, so that loops of conversions vectorise.
  NANOTRON_FUNCTION static std::uint16_t round_from(float value) {
    const std::uint32_t u = bits_of(value), sign = (u >> 16) & 0x8000u, size = u & 0x7fffffffu;
    const std::uint32_t normal = (size + 0xc8000fffu + ((size >> 13) & 1u)) >> 13;  // exponent less 112, rounded
    // The last bit of 0.5f is 2^-24, the smallest fp16: the addition rounds to a multiple of it.
    const std::uint32_t small = bits_of(value_of(size) + 0.5f) - 0x3f000000u;
    const std::uint32_t special = size > 0x7f800000u ? 0x7e00u : 0x7c00u;
    const std::uint32_t half = size >= 0x477ff000u ? special : size < 0x38800000u ? small : normal;
    return static_cast<std::uint16_t>(sign | half);
  }
  NANOTRON_FUNCTION static float widened(std::uint16_t half) {
    const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000u) << 16, size = half & 0x7fffu;
    const std::uint32_t finite = bits_of(value_of(size << 13) * 0x1p112f);
    const std::uint32_t special = 0x7f800000u | (size & 0x3ffu) << 13;
    return value_of(sign | (size >= 0x7c00u ? special : finite));
  }
};
static_assert(sizeof(fp16) == 2 && std::is_trivial_v<fp16>);

}  // namespace nanotron
