#pragma once

// Reference implementation of kernels/fp8: in fp64, by search in the table of a format's values.

#include <cmath>

#include "nanotron/kernels/fp8/quantise.hpp"

namespace nanotron::kernels::reference {

/// 2^-e of quantise.hpp.
template <class E>
double scale_of(double amax) {
  if (!(amax > 0.0) || !std::isfinite(amax)) return 1.0;
  int e = -126;
  while (e < 126 && std::ldexp(amax, e + 1) <= static_cast<double>(E::largest)) ++e;
  return std::ldexp(1.0, -e);
}

/// The nearest value of the format, of two equally near ones that with the even code.
template <class E>
std::uint8_t nearest_code(double x) {
  const std::uint8_t sign = std::signbit(x) ? 0x80 : 0;
  std::uint8_t best = 0;
  double least = INFINITY;
  for (std::uint8_t code = 0; code < 0x80; ++code) {
    const double value = static_cast<float>(E::from_bits(code)), gap = std::abs(std::abs(x) - value);
    if (std::isfinite(value) && (gap < least || (gap == least && code % 2 == 0))) best = code, least = gap;
  }
  return sign | best;
}

}  // namespace nanotron::kernels::reference
