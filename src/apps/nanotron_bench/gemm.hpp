#pragma once

#include <vector>

#include "bench.hpp"

namespace nanotron::apps::bench {

// (a) GEMMs: square ones in these types and fp32, the deck's own shapes in these types. Collective.
void measure_gemm(const Bench& bench, const std::vector<ScalarType>& types);

// How shape changes the rate of a GEMM on this rank (trainer/plan/kernel_time.hpp): of the deck's shapes and square
// ones,
//   seconds = FLOPs / rate + bytes / operands, fitted to relative errors, whose mean by their share of a step is
//   `error`.
struct GemmFit {
  double rate = 0.0, operands = 0.0, error = 0.0;  // operands = 0: no such term
};
GemmFit fit_gemms(const Bench& bench, ScalarType type);

// Measured GEMM peak: FLOP/s of all ranks at once, the better of square GEMMs of order 1024 and 2048.
template <class T>
double matrix_ceiling(const Bench& bench, Device& device);

}  // namespace nanotron::apps::bench
