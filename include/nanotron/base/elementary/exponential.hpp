#pragma once

// exp of +, -, *, /, fma and comparisons alone, each rounded as IEEE 754 says: the same bits on every
// processor and GPU, with every compiler and instruction set (nothing is contracted that is not an fma here; see
// doc/reproducibility.md). Without branches, so that loops vectorise. Errors in units in the last place are bounds that
// tests/unit/base/test_elementary.cpp measures.

#include <cmath>
#include <cstdint>
#include <cstring>

#include "nanotron/base/types.hpp"

namespace nanotron {

namespace detail {

// x = n ln 2 + r with an integer n: adding 1.5 2^52 (1.5 2^23) leaves it in the low bits of `shifted`.
template <class M>
struct Binary {
  using Bits = std::conditional_t<std::is_same_v<M, double>, std::uint64_t, std::uint32_t>;
  static constexpr M to_integer = std::is_same_v<M, double> ? M(0x1.8p52) : M(0x1.8p23f);
  static constexpr int fraction = std::is_same_v<M, double> ? 52 : 23;
  static constexpr Bits bias = std::is_same_v<M, double> ? 1023 : 127;

  // 2^n of an integer n, |n| < bias, from n + to_integer.
  NANOTRON_FUNCTION static M power_of_two(M shifted) {
    Bits bits;
    std::memcpy(&bits, &shifted, sizeof bits);
    bits = (bits + bias) << fraction;
    M power;
    std::memcpy(&power, &bits, sizeof power);
    return power;
  }
  // p 2^n by its exponent, where that stays normal.
  NANOTRON_FUNCTION static M times_power_of_two(M p, M shifted) {
    Bits bits, n;
    std::memcpy(&bits, &p, sizeof bits);
    std::memcpy(&n, &shifted, sizeof n);
    bits += n << fraction;
    std::memcpy(&p, &bits, sizeof p);
    return p;
  }
};

// r = x - n ln 2 = high + low, high exact: ln 2 in two parts, of which the first has 15 (fp64: 40) bits.
template <class M>
struct Reduced {
  M r, high, low;
  NANOTRON_FUNCTION static Reduced of(M x, M n) {
    constexpr bool is_double = std::is_same_v<M, double>;
    constexpr M first = is_double ? M(0x1.62e42fefa2p-1) : M(0x1.62e4p-1f);
    constexpr M second = is_double ? M(0x1.9ef35793c7673p-41) : M(0x1.7f7d1cp-20f);
    const M high = std::fma(n, -first, x), low = -n * second;
    return {high + low, high, low};
  }
};

// (exp(r) - 1 - r) / r^2 for |r| <= ln 2 / 2: its Taylor series to 1 / 13!; in fp32 Cephes' expf (Moshier 1989).
NANOTRON_FUNCTION inline double rest_of_exponential(double r) {
  double p = 1.0 / 6227020800.0;
  p = std::fma(p, r, 1.0 / 479001600.0);
  p = std::fma(p, r, 1.0 / 39916800.0);
  p = std::fma(p, r, 1.0 / 3628800.0);
  p = std::fma(p, r, 1.0 / 362880.0);
  p = std::fma(p, r, 1.0 / 40320.0);
  p = std::fma(p, r, 1.0 / 5040.0);
  p = std::fma(p, r, 1.0 / 720.0);
  p = std::fma(p, r, 1.0 / 120.0);
  p = std::fma(p, r, 1.0 / 24.0);
  p = std::fma(p, r, 1.0 / 6.0);
  return std::fma(p, r, 0.5);
}
NANOTRON_FUNCTION inline float rest_of_exponential(float r) {
  float p = 1.9875691500e-4f;
  p = std::fma(p, r, 1.3981999507e-3f);
  p = std::fma(p, r, 8.3334519073e-3f);
  p = std::fma(p, r, 4.1665795894e-2f);
  p = std::fma(p, r, 1.6666665459e-1f);
  return std::fma(p, r, 5.0000001201e-1f);
}

template <class M>
inline constexpr M over_ln2 = M(1.44269504088896340736);

}  // namespace detail

/// exp(x) within 1 ulp, over the whole range (subnormal results, infinity, NaN):
///   x = n ln 2 + r, |r| <= ln 2 / 2, exp(x) = 2^n (1 + r + r^2 P(r)), 2^n in two factors.
template <class M>
NANOTRON_FUNCTION inline M exponential(M x) {
  using B = detail::Binary<M>;
  constexpr bool is_double = std::is_same_v<M, double>;
  constexpr M least = is_double ? M(-750) : M(-105), most = is_double ? M(710) : M(89);
  x = x < least ? least : x;
  x = x > most ? most : x;
  const M shifted = std::fma(x, detail::over_ln2<M>, B::to_integer), n = shifted - B::to_integer;
  const auto of = detail::Reduced<M>::of(x, n);
  const M p = (of.high + std::fma(of.r * of.r, detail::rest_of_exponential(of.r), of.low)) + M(1);
#if defined(NANOTRON_ON_GPU)
  if (x > (is_double ? M(-708) : M(-87)) && x < (is_double ? M(709) : M(88))) return B::times_power_of_two(p, shifted);
#endif
  const M half = std::fma(n, M(0.5), B::to_integer), other = n - (half - B::to_integer);
  return p * B::power_of_two(half) * B::power_of_two(other + B::to_integer);
}

namespace detail {

// A sum and what its rounding left.
template <class M>
struct Pair {
  M high, low;
  NANOTRON_FUNCTION static Pair sum(M a, M b) {
    const M total = a + b, part = total - a;
    return {total, (a - (total - part)) + (b - part)};
  }
};

}  // namespace detail
}  // namespace nanotron
