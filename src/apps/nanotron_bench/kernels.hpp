#pragma once

#include <vector>

#include "bench.hpp"

namespace nanotron::apps::bench {

// (b) Every kernel but GEMMs, at the sizes of the deck, compared with a copy of as many bytes;
// attention compared with the measured GEMM peak. Collective.
void measure_kernels(const Bench& bench, const std::vector<ScalarType>& types);

// Of rank 0, by kernel: bytes per second where memory bounds it, else FLOP/s.
struct MeasuredRate {
  std::string kernel;
  double bytes = 0.0, flops = 0.0;
};
std::vector<MeasuredRate> kernel_rates(const Bench& bench, ScalarType type);

// Bytes read and written per second by a copy on this rank that moves `bytes` (at most 512 MB).
double copy_rate(const Bench& bench, Device& device, double bytes);

}  // namespace nanotron::apps::bench
