#pragma once

// The largest of many errors, for a bound. One that is not a number is the largest: std::max and std::fmax lose it.

#include <cmath>
#include <cstddef>
#include <limits>

namespace nanotron::test {

/// The larger one, or the one that is not a number.
inline double larger(double a, double b) { return std::isnan(a) || a >= b ? a : b; }

/// max f(i) of i in [0, count); 0 of none.
template <class F>
double largest_of(std::size_t count, const F& f) {
  double largest = 0.0;
  for (std::size_t i = 0; i < count; ++i) largest = larger(largest, f(i));
  return largest;
}

/// max |a - b|. Values of other sizes differ without bound.
template <class A, class B>
double largest_difference(const A& a, const B& b) {
  if (a.size() != b.size()) return std::numeric_limits<double>::infinity();
  return largest_of(b.size(), [&](std::size_t i) { return std::abs(a[i] - b[i]); });
}

/// max |a - b| / |b|, of losses; there are some.
template <class A, class B>
double largest_relative_difference(const A& a, const B& b) {
  if (a.size() != b.size() || b.empty()) return std::numeric_limits<double>::infinity();
  return largest_of(b.size(), [&](std::size_t i) { return std::abs(a[i] - b[i]) / std::abs(b[i]); });
}

}  // namespace nanotron::test
