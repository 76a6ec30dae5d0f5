#pragma once

#include <vector>

#include "bench.hpp"

namespace nanotron::apps::bench {

// (d) Training steps in these types, in turn with the measured GEMM peak: speed, where the time goes,
// communication. Collective.
void measure_steps(const Bench& bench, const std::vector<ScalarType>& types);

}  // namespace nanotron::apps::bench
