#pragma once

// Order-independent sums in one pass: same bits for any order of the terms and any distribution over ranks. Terms are
// cut into digits at fixed binary places, the digits of a place are added as integers, and the top four places that
// are not empty are kept (indexed summation: Demmel and Nguyen, "Parallel Reproducible Summation", IEEE Transactions on
// Computers 64, 2015, section 4):
//
//   term = sum over k of d_k 2^(28 (k - 1)), |d_k| < 2^28, rounded toward zero after the fourth
//
// so that a term is off by less than 2^-84 of the largest one.

#include <cmath>
#include <cstdint>
#include <limits>

#include "nanotron/tensor/device.hpp"
#include "nanotron/tensor/tensor.hpp"

namespace nanotron::kernels {

/// Sums of the digits at the places top to top - 3. They do not overflow for up to 2^35 terms.
struct ExactSum {
  static constexpr int places = 4;
  static constexpr int width = 28;                     // bits of a digit
  static constexpr std::int64_t lowest = -32;          // place; smaller terms are lost: below 2^-1008
  static constexpr std::int64_t not_finite = 1 << 20;  // place of infinity and NaN

  std::int64_t top = lowest;
  std::int64_t digits[places] = {};

  /// The digits that are kept if the top place is `place` >= top.
  NANOTRON_FUNCTION ExactSum below(std::int64_t place) const {
    ExactSum moved = *this;
    moved.top = place;
    for (int shift = 0; shift < places; ++shift) {  // one place each: computed indices put arrays in a GPU's memory
      if (shift >= place - top) continue;
      for (int i = places - 1; i > 0; --i) moved.digits[i] = moved.digits[i - 1];
      moved.digits[0] = 0;
    }
    return moved;
  }
  NANOTRON_FUNCTION ExactSum& operator+=(const ExactSum& more) {
    const std::int64_t place = top < more.top ? more.top : top;
    const ExactSum other = more.below(place);
    *this = below(place);
    for (int i = 0; i < places; ++i) digits[i] += other.digits[i];
    return *this;
  }
};

inline constexpr double not_a_sum = std::numeric_limits<double>::infinity();  // named outside of functions for nvcc

/// Rounded to a double; infinity if any term is not finite.
NANOTRON_FUNCTION inline double value(const ExactSum& sum) {
  if (sum.top == ExactSum::not_finite) return not_a_sum;
  // Carries first: the same digits for the same sum, however it was made.
  constexpr std::int64_t base = std::int64_t{1} << ExactSum::width;
  std::int64_t digits[ExactSum::places], carry = 0;
  for (int i = ExactSum::places - 1; i > 0; --i) {
    const std::int64_t digit = sum.digits[i] + carry;
    digits[i] = digit % base;
    carry = digit / base;
  }
  digits[0] = sum.digits[0] + carry;
  double total = 0;
  for (int i = ExactSum::places - 1; i >= 0; --i) {
    total += std::ldexp(static_cast<double>(digits[i]), ExactSum::width * static_cast<int>(sum.top - 1 - i));
  }
  return total;
}

// Results are in memory of the device, one element each, with no host synchronization.

/// result <- sum of x^2, each rounded to a double. M is double or float.
template <class M>
void sum_of_squares(Device& device, Vector<const M> x, Vector<ExactSum> result);

/// result <- sum of x; for sums: the same bits in any order, 0 for none.
void sum(Device& device, Vector<const double> x, Vector<ExactSum> result);
void sum(Device& device, Vector<const ExactSum> sums, Vector<ExactSum> result);

/// A sum over ranks in four calls: top_place, all-reduce (max) of the place, at_place, all-reduce (sum) of the digits.
/// place <- that of the sum.
void top_place(Device& device, Vector<const ExactSum> sum, Vector<std::int64_t> place);
/// sum <- its digits that are kept if the top place is `place` >= its own.
void at_place(Device& device, Vector<const std::int64_t> place, Vector<ExactSum> sum);

}  // namespace nanotron::kernels
