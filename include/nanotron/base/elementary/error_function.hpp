#pragma once

// erfc, as exponential.hpp has exp: the same bits everywhere.

#include "nanotron/base/elementary/exponential.hpp"

namespace nanotron {

namespace detail {

// (1 + 2 z) exp(z^2) erfc(z) for z >= 0 as a polynomial of t = (z - k) / (z + k), k = 4 (the form
// of Shepherd and Laframboise 1981). Coefficients: interpolation in Chebyshev points of t up to the z where erfc
// underflows; relative errors 1.3e-17 and, of the short one, 3.0e-9.
NANOTRON_FUNCTION inline double scaled_erfc(double z) {
  constexpr double coefficients[] = {
      -1.90738862700797094e-9, -1.39528121230423828e-8, -7.79621093575039444e-9, 1.15975649197128358e-7,
      6.32638193601384527e-8,  -8.35688605480224442e-7, 3.00605302027092585e-7,  5.71806700478588108e-6,
      -1.12242935946793856e-5, -2.44031604971926337e-5, 1.50622052323059897e-4,  -1.99255534760078382e-4,
      -7.57773296373946229e-4, 5.0319697650511225e-3,   -1.61977340655028754e-2, 3.71675155610567106e-2,
      -6.63303658110103034e-2, 9.37328349969053537e-2,  -1.01039066036373629e-1, 6.80970542547336003e-2,
      1.53796521026210902e-2,  -1.39621116840562858e-1, 1.23299511862555251};
  const double t = (z - 4.0) / (z + 4.0);
  double p = coefficients[0];
  for (int i = 1; i < 23; ++i) p = std::fma(p, t, coefficients[i]);
  return p;
}
// The same to fewer digits, k = 3.
NANOTRON_FUNCTION inline double short_scaled_erfc(double z) {
  constexpr double coefficients[] = {-2.763902556e-4, -7.957492334e-4, 1.99637574e-3,   2.578845361e-3,
                                     -2.379134803e-2, 6.829336743e-2,  -1.192724743e-1, 1.296466124e-1,
                                     -4.756228937e-2, -1.356211448e-1, 1.253008058};
  const double t = (z - 3.0) / (z + 3.0);
  double p = coefficients[0];
  for (int i = 1; i < 11; ++i) p = std::fma(p, t, coefficients[i]);
  return p;
}

}  // namespace detail

/// erfc(x) = 1 - erf(x) within 4 ulp for normal results: exp(-x^2) P(t) / (1 + 2 |x|), x^2 to twice the digits.
NANOTRON_FUNCTION inline double complementary_error(double x) {
  double z = x < 0.0 ? -x : x;
  z = z > 27.3 ? 27.3 : z;
  const double square = z * z, low = std::fma(z, z, -square), e = exponential(-square);
  const double tail = std::fma(-e, low, e) * (detail::scaled_erfc(z) / std::fma(2.0, z, 1.0));
  return x < 0.0 ? 2.0 - tail : tail;
}
/// Within 1 ulp, in fp64.
NANOTRON_FUNCTION inline float complementary_error(float x) {
  double z = x < 0.0f ? -x : x;
  z = z > 10.2 ? 10.2 : z;
  const double tail = exponential(-z * z) * (detail::short_scaled_erfc(z) / std::fma(2.0, z, 1.0));
  return static_cast<float>(x < 0.0f ? 2.0 - tail : tail);
}

}  // namespace nanotron
