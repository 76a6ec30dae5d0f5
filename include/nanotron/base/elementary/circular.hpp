#pragma once

// sin and cos, as exponential.hpp has exp: the same bits everywhere.

#include "nanotron/base/elementary/exponential.hpp"

namespace nanotron {

/// sin(x) and cos(x) within 1 ulp, for |x| <= 2^26 (beyond without digits).
struct Circular {
  double sine, cosine;

  /// x = n pi / 2 + r + r_low, |r| <= pi / 4 (Cody and Waite 1980, with fma); sin and cos of r as in FreeBSD's k_sin.c
  /// and k_cos.c, of fdlibm (Sun Microsystems 1993).
  NANOTRON_FUNCTION static Circular of(double x) {
    using B = detail::Binary<double>;
    constexpr double first = 0x1.921fb54442d18p+0, second = 0x1.1a62633145c07p-54, third = -0x1.f1976b7ed8fbcp-110;
    const double shifted = std::fma(x, 0.63661977236758134308, B::to_integer), n = shifted - B::to_integer;
    const double exact = std::fma(-n, first, x), w = n * second, r = exact - w;
    const double low = ((exact - r) - w) - (std::fma(n, second, -w) + n * third);
    const double s = sine_of(r, low), c = cosine_of(r, low);
    std::uint64_t quadrant;
    std::memcpy(&quadrant, &shifted, sizeof quadrant);
    const bool is_odd = (quadrant & 1) != 0, sine_is_negative = (quadrant & 2) != 0;
    const bool cosine_is_negative = ((quadrant + 1) & 2) != 0;
    const double sine = is_odd ? c : s, cosine = is_odd ? s : c;
    return {sine_is_negative ? -sine : sine, cosine_is_negative ? -cosine : cosine};
  }

 private:
  NANOTRON_FUNCTION static double sine_of(double r, double low) {
    const double z = r * r, cube = z * r;
    double p = 1.58969099521155010221e-10;
    p = std::fma(p, z, -2.50507602534068634195e-08);
    p = std::fma(p, z, 2.75573137070700676789e-06);
    p = std::fma(p, z, -1.98412698298579493134e-04);
    p = std::fma(p, z, 8.33333333332248946124e-03);
    return r - ((z * (0.5 * low - cube * p) - low) + cube * 1.66666666666666324348e-01);
  }
  NANOTRON_FUNCTION static double cosine_of(double r, double low) {
    const double z = r * r, half = 0.5 * z, w = 1.0 - half;
    double p = -1.13596475577881948265e-11;
    p = std::fma(p, z, 2.08757232129817482790e-09);
    p = std::fma(p, z, -2.75573143513906633035e-07);
    p = std::fma(p, z, 2.48015872894767294178e-05);
    p = std::fma(p, z, -1.38888888888741095749e-03);
    p = std::fma(p, z, 4.16666666666666019037e-02);
    return w + (((1.0 - w) - half) + (z * (z * p) - r * low));
  }
};

NANOTRON_FUNCTION inline double sine(double x) { return Circular::of(x).sine; }
NANOTRON_FUNCTION inline double cosine(double x) { return Circular::of(x).cosine; }

}  // namespace nanotron
