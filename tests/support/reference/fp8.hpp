#pragma once

// Reference implementation of kernels/fp8: in fp64, by search in the table of a format's values.

#include <algorithm>
#include <cmath>
#include <vector>

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
    if (value <= E::largest && (gap < least || (gap == least && code % 2 == 0))) best = code, least = gap;
  }
  return fp8_is_fnuz && best == 0 ? 0 : sign | best;
}

/// The scale of each value of a matrix in row-major order, where one is for `high` x `wide` values.
template <class E = e4m3, class T>
std::vector<double> scales_of_parts(const T* x, index_t rows, index_t columns, index_t high, index_t wide) {
  std::vector<double> scales(static_cast<std::size_t>(rows * columns));
  for (index_t r0 = 0; r0 < rows; r0 += high) {
    for (index_t c0 = 0; c0 < columns; c0 += wide) {
      double amax = 0.0;
      const auto for_each = [&](const auto& f) {
        for (index_t r = r0; r < std::min(rows, r0 + high); ++r) {
          for (index_t c = c0; c < std::min(columns, c0 + wide); ++c) f(static_cast<std::size_t>(r * columns + c));
        }
      };
      for_each([&](std::size_t i) {
        const double size = std::abs(static_cast<double>(static_cast<float>(x[i])));
        amax = size <= amax ? amax : size;
      });
      const double scale = scale_of<E>(amax);
      for_each([&](std::size_t i) { scales[i] = scale; });
    }
  }
  return scales;
}

}  // namespace nanotron::kernels::reference
