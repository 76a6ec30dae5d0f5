#pragma once

#include "bench.hpp"

namespace nanotron::apps::bench {

/// All-gathers before a GEMM and reduce-scatters after a GEMM over the tp group, with and without overlap in chunks,
/// compared with the GEMM and the communication by themselves. Collective.
void measure_overlap(const Bench& bench, const std::vector<ScalarType>& types);

}  // namespace nanotron::apps::bench
