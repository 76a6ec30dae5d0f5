#pragma once

// Scalar functions of the kernels, without branches, so that host loops over them vectorise.

#include <cmath>
#include <cstdint>
#include <cstring>

#include "nanotron/base/types.hpp"

namespace nanotron::kernels {

/// exp(x) in fp32 to 2 units in the last place, over the whole range (subnormal results, infinity,
/// NaN). x = n ln 2 + r, |r| <= ln 2 / 2, a polynomial in r (Cephes' expf, Moshier 1989), 2^n in two
/// factors.
NANOTRON_FUNCTION inline float exponential(float x) {
#if defined(NANOTRON_ON_GPU)
  return ::expf(x);
#else
  constexpr float round_to_integer = 12582912.0f;  // 1.5 * 2^23: adding it leaves the integer part
  x = x < -105.0f ? -105.0f : x;
  x = x > 89.0f ? 89.0f : x;
  const float shifted = x * 1.44269504088896341f + round_to_integer;
  const float n = shifted - round_to_integer;
  float r = x - n * 0.693359375f;
  r = r + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  std::int32_t exponent;
  std::memcpy(&exponent, &shifted, sizeof exponent);
  exponent -= 0x4b400000;  // the bits of round_to_integer: what remains is n
  const std::int32_t half = exponent >> 1;
  const std::int32_t first = (half + 127) << 23;
  const std::int32_t second = (exponent - half + 127) << 23;
  float a, b;
  std::memcpy(&a, &first, sizeof a);
  std::memcpy(&b, &second, sizeof b);
  return p * a * b;
#endif
}

NANOTRON_FUNCTION inline double exponential(double x) {
#if defined(NANOTRON_ON_GPU)
  return ::exp(x);
#else
  return std::exp(x);
#endif
}

/// tanh(x) to a few units in the last place: x + x^3 P(x^2) for small x (Cephes' tanhf), else 1 - 2 / (exp(2 |x|) + 1).
NANOTRON_FUNCTION inline float hyperbolic_tangent(float x) {
#if defined(NANOTRON_ON_GPU)
  return ::tanhf(x);
#else
  const float magnitude = x < 0.0f ? -x : x, square = x * x;
  float p = -5.70498872745e-3f;
  p = p * square + 2.06390887954e-2f;
  p = p * square - 5.37397155531e-2f;
  p = p * square + 1.33314422036e-1f;
  p = p * square - 3.33332819422e-1f;
  const float large = 1.0f - 2.0f / (exponential(2.0f * magnitude) + 1.0f);
  return magnitude < 0.625f ? x + x * square * p : x < 0.0f ? -large : large;
#endif
}

NANOTRON_FUNCTION inline double hyperbolic_tangent(double x) {
#if defined(NANOTRON_ON_GPU)
  return ::tanh(x);
#else
  return std::tanh(x);
#endif
}

}  // namespace nanotron::kernels
