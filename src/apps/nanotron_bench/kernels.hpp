#pragma once

#include <vector>

#include "bench.hpp"

namespace nanotron::apps::bench {

// (b) Every kernel but GEMMs, at the sizes of the deck, compared with a copy of as many bytes;
// attention compared with the measured GEMM peak. Collective.
void measure_kernels(const Bench& bench, const std::vector<ScalarType>& types);

// Bytes read and written per second by a copy on this rank that moves `bytes` (at most 512 MB).
double copy_rate(const Bench& bench, Device& device, double bytes);

}  // namespace nanotron::apps::bench
