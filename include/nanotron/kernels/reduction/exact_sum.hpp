#pragma once

// Order-independent sums in one pass: same bits for any order of the terms and any distribution over ranks. Terms are
// cut into digits at fixed binary places, the digits of a place are added as integers, and the top four places that
// are not empty are kept (indexed summation: Demmel and Nguyen, "Parallel Reproducible Summation", IEEE Transactions on
// Computers 64, 2015, section 4):
//
//   term = sum over k of d_k 2^(28 (k - 1)), |d_k| < 2^28, rounded toward zero after the fourth
//
// so that a term is off by less than 2^-84 of the largest one.

#include <cstdint>

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

  /// What is left of it beside terms whose top place is `place` >= top.
  NANOTRON_FUNCTION ExactSum below(std::int64_t place) const {
    ExactSum moved;
    moved.top = place;
    const std::int64_t shift = place - top;
    for (std::int64_t i = shift; i < places; ++i) moved.digits[i] = digits[i - shift];
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

/// Rounded to a double; infinity if any term is not finite.
double value(const ExactSum& sum);

/// The sum over ranks of theirs. max and add: of an std::int64_t over the same ranks.
template <class Max, class Add>
ExactSum over_ranks(const ExactSum& here, const Max& max, const Add& add) {
  ExactSum all = here.below(max(here.top));
  for (std::int64_t& digit : all.digits) digit = add(digit);
  return all;
}

/// Sum of x^2, each rounded to a double. The result is on the host at return. M is double or float.
template <class M>
ExactSum sum_of_squares(Device& device, Vector<const M> x);

/// Sum of x. The result is on the host at return.
ExactSum sum(Device& device, Vector<const double> x);

}  // namespace nanotron::kernels
