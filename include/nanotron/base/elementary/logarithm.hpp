#pragma once

// log, log(1 + x) and pow, as exponential.hpp has exp: the same bits everywhere.

#include "nanotron/base/elementary/exponential.hpp"

namespace nanotron {

namespace detail {

inline constexpr double ln2_high = 0x1.62e42fefa2p-1, ln2_low = 0x1.9ef35793c7673p-41;  // ln 2, the first of 40 bits

// x = 2^k (1 + f), 1 + f in [sqrt(1/2), sqrt(2)); x > 0 and normal.
struct Mantissa {
  double k, f;
  NANOTRON_FUNCTION static Mantissa of(double x) {
    std::uint64_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    bits += 0x3ff0000000000000u - 0x3fe6a09e667f3bcdu;  // from sqrt(1/2) on the exponent is one more
    const auto exponent = (bits >> 52) | 0x4330000000000000u;
    double k;
    std::memcpy(&k, &exponent, sizeof k);
    k -= 0x1p52 + 1023.0;
    bits = (bits & 0x000fffffffffffffu) + 0x3fe6a09e667f3bcdu;
    double m;
    std::memcpy(&m, &bits, sizeof m);
    return {k, m - 1.0};
  }
};

// (log(1 + f) - 2 s) / s for s = f / (2 + f), z = s^2: FreeBSD's e_log.c, of fdlibm (Sun Microsystems 1993).
NANOTRON_FUNCTION inline double rest_of_logarithm(double z) {
  double p = 1.479819860511658591e-01;
  p = std::fma(p, z, 1.531383769920937332e-01);
  p = std::fma(p, z, 1.818357216161805012e-01);
  p = std::fma(p, z, 2.222219843214978396e-01);
  p = std::fma(p, z, 2.857142874366239149e-01);
  p = std::fma(p, z, 3.999999999940941908e-01);
  return z * std::fma(p, z, 6.666666666666735130e-01);
}

// k ln 2 + log(1 + f) + correction.
NANOTRON_FUNCTION inline double logarithm_of(const Mantissa& m, double correction) {
  const double s = m.f / (2.0 + m.f), half_square = 0.5 * m.f * m.f;
  const double rest = std::fma(s, half_square + rest_of_logarithm(s * s), std::fma(m.k, ln2_low, correction));
  return std::fma(m.k, ln2_high, m.f - (half_square - rest));
}

}  // namespace detail

/// log(x) within 1 ulp; -infinity at 0, NaN below.
NANOTRON_FUNCTION inline double logarithm(double x) {
  constexpr double infinite = __builtin_huge_val(), least = 0x1p-1022;
  const bool is_small = x < least;
  detail::Mantissa m = detail::Mantissa::of(is_small ? x * 0x1p54 : x);
  m.k -= is_small ? 54.0 : 0.0;
  const double result = detail::logarithm_of(m, 0.0);
  return x == 0.0 ? -infinite : x < infinite ? (x < 0.0 ? infinite - infinite : result) : x;
}
/// Correctly rounded except for 1 in about 2^28 arguments.
NANOTRON_FUNCTION inline float logarithm(float x) { return static_cast<float>(logarithm(static_cast<double>(x))); }

/// log(1 + x) for x >= 0 within 1 ulp: log(w) + (x - (w - 1)) / w with w = 1 + x rounded.
NANOTRON_FUNCTION inline double logarithm_1p(double x) {
  const double w = 1.0 + x;
  return w == 1.0 ? x : detail::logarithm_of(detail::Mantissa::of(w), (x - (w - 1.0)) / w);
}
NANOTRON_FUNCTION inline float logarithm_1p(float x) {
  return static_cast<float>(logarithm_1p(static_cast<double>(x)));
}

/// x^y for 0 < x < infinity, within 1.3 ulp where abs(y log x) < 14 and within 5 for other normal results, by a
/// logarithm of twice the digits:
///   log(1 + f) = 2 s + s^3 (2/3 + z P(z)), s = f / (2 + f), z = s^2.
NANOTRON_FUNCTION inline double power(double x, double y) {
  const bool is_small = x < 0x1p-1022;
  detail::Mantissa m = detail::Mantissa::of(is_small ? x * 0x1p54 : x);
  m.k -= is_small ? 54.0 : 0.0;
  using Pair = detail::Pair<double>;
  // s = high + low
  const double d = 2.0 + m.f, d_low = m.f - (d - 2.0), s = m.f / d;
  const double s_low = (std::fma(-s, d, m.f) - s * d_low) / d;
  // z and s^3 2/3 to twice the digits, the rest of the series in one number
  const double z = s * s, z_low = std::fma(s, s, -z) + 2.0 * s * s_low;
  const double rest = detail::rest_of_logarithm(z) - z * 0x1.5555555555555p-1;
  const double cube = s * z, cube_low = std::fma(s, z, -cube) + s * z_low + s_low * z;
  const double third = cube * 0x1.5555555555555p-1;
  const double third_low = std::fma(cube, 0x1.5555555555555p-1, -third) + cube * 0x1.5555555555555p-55 +
                           cube_low * 0x1.5555555555555p-1 + s * rest;
  // k ln 2 + 2 s + s^3 2/3
  const Pair first = Pair::sum(m.k * detail::ln2_high, 2.0 * s), both = Pair::sum(first.high, third);
  const Pair log = Pair::sum(both.high, third_low + 2.0 * s_low + m.k * detail::ln2_low + (first.low + both.low));
  // exp(y log)
  const double product = y * log.high, product_low = std::fma(y, log.high, -product) + y * log.low;
  const double result = exponential(product);
  return result < __builtin_huge_val() ? std::fma(result, product_low, result) : result;
}

}  // namespace nanotron
