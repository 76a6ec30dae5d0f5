#pragma once

#include <vector>

#include "bench.hpp"

namespace nanotron::apps::bench {

// (a) GEMMs: square ones in these types and fp32, the deck's own shapes in these types. Collective.
void measure_gemm(const Bench& bench, const std::vector<ScalarType>& types);

// Measured GEMM peak: FLOP/s of all ranks at once, the better of square GEMMs of order 1024 and 2048.
template <class T>
double matrix_ceiling(const Bench& bench, Device& device);

}  // namespace nanotron::apps::bench
