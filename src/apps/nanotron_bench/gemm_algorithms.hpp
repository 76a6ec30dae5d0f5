#pragma once

#include "bench.hpp"

namespace nanotron::apps::bench {

// Measures the GEMMs of training steps in this type and writes options.gemm_algorithms. Collective.
void write_gemm_algorithms(const Bench& bench, ScalarType type);

}  // namespace nanotron::apps::bench
