#pragma once

#include "bench.hpp"

namespace nanotron::apps::bench {

// Measures the GEMMs of a training step in each of these types and writes options.gemm_algorithms. Collective.
void write_gemm_algorithms(const Bench& bench, const std::vector<ScalarType>& types);

}  // namespace nanotron::apps::bench
