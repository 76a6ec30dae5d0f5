#pragma once

#include <vector>

#include "bench.hpp"

namespace nanotron::apps::bench {

// (a) Matrix products: squares in these types and fp32, the deck's own shapes in these types.
// Collective.
void measure_gemm(const Bench& bench, const std::vector<ScalarType>& types);

// Operations per second of all ranks together, all at once: the best of squares of order 1024 and
// 2048.
template <class T>
double matrix_ceiling(const Bench& bench, Device& device);

}  // namespace nanotron::apps::bench
