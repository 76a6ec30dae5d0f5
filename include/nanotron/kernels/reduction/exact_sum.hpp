#pragma once

// Sums of doubles whose bits depend on the terms alone, not on their order or on who holds them: every term is rounded
// to a multiple of a quantum that is the same for all (pre-rounding, Demmel and Nguyen, "Fast Reproducible
// Floating-Point Summation", ARITH 2013), and multiples are added as integers. Two quanta, the second for what the
// first leaves: a term is off by at most 2^-60 of the largest one.
//
//   Quanta q(largest of all ranks)     parts = sum of parts of all ranks     value(parts, q)

#include <cstdint>

#include "nanotron/tensor/device.hpp"
#include "nanotron/tensor/tensor.hpp"

namespace nanotron::kernels {

struct Quanta {
  /// For terms of at most this magnitude, which is finite.
  explicit Quanta(double largest_term);
  double coarse, fine;
};

/// Multiples of the two quanta. Up to 2^32 terms they do not overflow.
struct ExactParts {
  std::int64_t coarse = 0, fine = 0;
};

double value(const ExactParts& parts, const Quanta& quanta);

/// max |x|; infinity where any x is not finite. On the host when it returns. M is double or float.
template <class M>
double largest_magnitude(Device& device, Vector<const M> x);

/// Of x^2, for quanta of the largest square.
template <class M>
ExactParts sum_of_squares(Device& device, Vector<const M> x, const Quanta& quanta);

/// Of x.
ExactParts sum(Device& device, Vector<const double> x, const Quanta& quanta);

}  // namespace nanotron::kernels
