#pragma once

// The two FP8 formats (Micikevicius et al. 2022, "FP8 Formats for Deep Learning"), as operands of GEMMs:
//
//            significand   normal from   largest   not finite
//   e4m3     4 bits        2^-6          448       NaN
//   e5m2     3 bits        2^-14         57344     NaN, infinity
//
// MI300 has others (NANOTRON_FP8_FNUZ; Noune et al. 2022, "8-bit Numerical Formats for Deep Neural Networks"): a code
// means half of the value, there is neither -0 nor infinity, and NaN is the code of -0. All values above, halved, have
// the same codes there. So the values here are the same in every build; a build for MI300 stores 0 for -0 and that NaN
// for what is not finite, and its GEMMs multiply by fp8_code_unit of each operand.

#include "nanotron/base/types.hpp"

namespace nanotron {

#ifdef NANOTRON_FP8_FNUZ
inline constexpr bool fp8_is_fnuz = true;
#else
inline constexpr bool fp8_is_fnuz = false;
#endif
/// Values in the units that matrix cores take codes in.
inline constexpr float fp8_code_unit = fp8_is_fnuz ? 2.0f : 1.0f;

/// How a format stores what is not finite.
enum class Fp8Specials { nan_only, as_ieee };

/// A storage type of one byte. float -> Fp8 rounds to nearest, ties to even; finite values saturate at the largest
/// value; NaN stays NaN; infinity stays infinity if the build's format has it, else becomes NaN.
template <int mantissa, int bias, Fp8Specials specials>
struct Fp8 {
  std::uint8_t bits;

  /// The largest finite value is 0.875 2^top in both formats.
  static constexpr int top = specials == Fp8Specials::as_ieee ? 16 : 9;
  static constexpr float largest = 0.875f * static_cast<float>(1 << top);

  Fp8() = default;
  NANOTRON_FUNCTION explicit Fp8(float value) : bits(code_of(value)) {}
  NANOTRON_FUNCTION operator float() const { return widened(bits); }  // NOLINT(google-explicit-constructor): exact
  /// Only the bits, for kernels that pack them.
  NANOTRON_FUNCTION static std::uint8_t code_of(float value) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    return round_by_instruction(value);
#else
    return round_from(value);
#endif
  }
  NANOTRON_FUNCTION static Fp8 from_bits(std::uint8_t raw) {
    Fp8 value;
    value.bits = raw;
    return value;
  }

 private:
  static constexpr std::uint32_t dropped = 23 - mantissa;  // bits of a float's mantissa
  static constexpr std::uint32_t infinity = specials == Fp8Specials::as_ieee ? 0x7cu : 0x7fu;
  static constexpr std::uint32_t minus_zero = 0x80u;
  static constexpr std::uint32_t nan = 0x7fu, largest_code = specials == Fp8Specials::as_ieee ? 0x7bu : 0x7eu;
  NANOTRON_FUNCTION static constexpr std::uint32_t float_of_exponent(int exponent) {
    return static_cast<std::uint32_t>(exponent + 127) << 23;
  }
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

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  // The upper byte is for a second value. The instruction saturates infinity too: non-finite codes are set here.
  static __device__ std::uint8_t round_by_instruction(float value) {
    std::uint16_t pair;
    if constexpr (specials == Fp8Specials::as_ieee) {
      asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(value));
    } else {
      asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(value));
    }
    const std::uint32_t u = bits_of(value), sign = (u >> 24) & 0x80u, size = u & 0x7fffffffu;
    const std::uint32_t special = size > 0x7f800000u ? nan : infinity;
    return static_cast<std::uint8_t>(size >= 0x7f800000u ? sign | special : pair);
  }
#endif

  // Both without a branch, so that loops of conversions vectorise.
  NANOTRON_FUNCTION static std::uint8_t round_from(float value) {
    constexpr std::uint32_t half = (1u << (dropped - 1)) - 1u;
    constexpr std::uint32_t rebias = static_cast<std::uint32_t>(127 - bias) << mantissa;
    constexpr std::uint32_t min_normal = float_of_exponent(1 - bias);
    // The last bit of this float is the smallest Fp8: an addition rounds to a multiple of it.
    constexpr std::uint32_t grid = float_of_exponent(23 + 1 - bias - mantissa);
    const std::uint32_t u = bits_of(value), sign = (u >> 24) & 0x80u, size = u & 0x7fffffffu;
    const std::uint32_t normal = ((size + half + ((size >> dropped) & 1u)) >> dropped) - rebias;
    const std::uint32_t small = bits_of(value_of(size < min_normal ? size : 0u) + value_of(grid)) - grid;
    const std::uint32_t finite = size < min_normal ? small : normal;
    const std::uint32_t kept = finite < largest_code ? finite : largest_code;
    const std::uint32_t special = size > 0x7f800000u ? nan : infinity;
    if constexpr (fp8_is_fnuz) {
      return static_cast<std::uint8_t>(size >= 0x7f800000u ? minus_zero : kept == 0 ? 0u : sign | kept);
    }
    return static_cast<std::uint8_t>(sign | (size >= 0x7f800000u ? special : kept));
  }
  NANOTRON_FUNCTION static float widened(std::uint8_t code) {
    constexpr std::uint32_t rebias = float_of_exponent(127 - bias);
    const std::uint32_t sign = static_cast<std::uint32_t>(code & 0x80u) << 24, size = code & 0x7fu;
    // As a float with the exponent less 127 - bias; the product is exact, of subnormal numbers too.
    const std::uint32_t finite = bits_of(value_of(size << dropped) * value_of(rebias));
    const std::uint32_t special = size > infinity || infinity == nan ? 0x7fc00000u : 0x7f800000u;
    if constexpr (fp8_is_fnuz) return value_of(code == minus_zero ? 0x7fc00000u : sign | finite);
    return value_of(sign | (size >= infinity ? special : finite));
  }
};

using e4m3 = Fp8<3, 7, Fp8Specials::nan_only>;
using e5m2 = Fp8<2, 15, Fp8Specials::as_ieee>;
static_assert(sizeof(e4m3) == 1 && std::is_trivial_v<e4m3> && sizeof(e5m2) == 1 && std::is_trivial_v<e5m2>);

}  // namespace nanotron
