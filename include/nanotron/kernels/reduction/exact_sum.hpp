#pragma once

// Order-independent sums of doubles: same bits for any order of the terms and any distribution over ranks. Each term is
// rounded to a multiple of one quantum common to all terms (pre-rounding, Demmel and Nguyen, "Fast Reproducible
// Floating-Point Summation", ARITH 2013), and the multiples are added as integers. A second quantum takes the
// remainder: a term is off by at most 2^-60 of the largest one.
//
//   Quanta q(all-reduce max of the largest term)     parts = all-reduce sum of parts     value(parts, q)

#include <cstdint>

#include "nanotron/tensor/device.hpp"
#include "nanotron/tensor/tensor.hpp"

namespace nanotron::kernels {

struct Quanta {
  /// largest_term: max |term| over all ranks, or more; finite.
  explicit Quanta(double largest_term);
  double coarse, fine;
};

/// Multiples of the two quanta. They do not overflow for up to 2^32 terms.
struct ExactParts {
  std::int64_t coarse = 0, fine = 0;

  NANOTRON_FUNCTION ExactParts& operator+=(const ExactParts& more) {
    coarse += more.coarse;
    fine += more.fine;
    return *this;
  }
};

double value(const ExactParts& parts, const Quanta& quanta);

/// max |x|; infinity if any x is not finite. The result is on the host at return. M is double or float.
template <class M>
double largest_magnitude(Device& device, Vector<const M> x);

/// Sum of x^2; quanta is made from the largest x^2.
template <class M>
ExactParts sum_of_squares(Device& device, Vector<const M> x, const Quanta& quanta);

/// Sum of x.
ExactParts sum(Device& device, Vector<const double> x, const Quanta& quanta);

}  // namespace nanotron::kernels
