#pragma once

// exp - 1 and tanh, as exp of exponential.hpp.

#include "nanotron/base/elementary/exponential.hpp"

namespace nanotron {
namespace detail {

// exp(x) - 1 to more digits than M has, for -40 < x < 709.75 (fp32: -20 < x < 88.7): 2^n p + (2^n - 1) with
// p = r + r^2 P(r), computed as twice its half.
template <class M>
NANOTRON_FUNCTION inline Pair<M> half_of_exponential_minus_one(M x) {
  using B = Binary<M>;
  const M shifted = std::fma(x, over_ln2<M>, B::to_integer), n = shifted - B::to_integer;
  const auto of = Reduced<M>::of(x, n);
  const Pair<M> p = Pair<M>::sum(of.high, std::fma(of.r * of.r, rest_of_exponential(of.r), of.low));
  const M half = B::power_of_two(n - M(1) + B::to_integer);
  const Pair<M> total = Pair<M>::sum(half - M(0.5), half * p.high);
  return {total.high, std::fma(half, p.low, total.low)};
}

}  // namespace detail

/// exp(x) - 1 within 1.2 ulp for normal results.
template <class M>
NANOTRON_FUNCTION inline M exponential_minus_one(M x) {
  constexpr bool is_double = std::is_same_v<M, double>;
  constexpr M least = is_double ? M(-40) : M(-20), most = is_double ? M(709.75) : M(88.7);
  constexpr M linear = is_double ? M(0x1p-54) : M(0x1p-25f);  // here x is the result
  const M kept = x < least ? least : x > most ? most : x;
  const auto half = detail::half_of_exponential_minus_one(kept);
  const M magnitude = x < M(0) ? -x : x;
  return magnitude < linear ? x : x > most ? exponential(x) : M(2) * (half.high + half.low);
}

/// tanh(x) within 1.2 ulp: E / (E + 2) with E = exp(2 |x|) - 1 and the sign of x, with the remainder of the division;
/// in fp32 for small x x + x^3 P(x^2) (Cephes' tanhf), else 1 - 2 / (exp(2 |x|) + 1).
NANOTRON_FUNCTION inline double hyperbolic_tangent(double x) {
  double magnitude = x < 0.0 ? -x : x;
  magnitude = magnitude > 20.0 ? 20.0 : magnitude;
  const auto e = detail::half_of_exponential_minus_one(2.0 * magnitude);
  const double sum = e.high + 1.0, sum_low = (e.high - (sum - 1.0)) + e.low, q = e.high / sum;
  const double t = q + (std::fma(-q, sum, e.high) + (e.low - q * sum_low)) / sum;
  return magnitude < 0x1p-28 ? x : x < 0.0 ? -t : t;
}
NANOTRON_FUNCTION inline float hyperbolic_tangent(float x) {
  const float magnitude = x < 0.0f ? -x : x, square = x * x;
  float p = -5.70498872745e-3f;
  p = std::fma(p, square, 2.06390887954e-2f);
  p = std::fma(p, square, -5.37397155531e-2f);
  p = std::fma(p, square, 1.33314422036e-1f);
  p = std::fma(p, square, -3.33332819422e-1f);
  const float e = exponential(2.0f * magnitude), sum = e + 1.0f, sum_low = e - (sum - 1.0f), q = 2.0f / sum;
  const float large = 1.0f - (e < 1e9f ? std::fma(-0.5f * q * q, sum_low, q) : 0.0f);
  return magnitude < 0.625f ? std::fma(x * square, p, x) : x < 0.0f ? -large : large;
}

}  // namespace nanotron
