#pragma once

#include <vector>

#include "bench.hpp"

namespace nanotron::apps::bench {

// (b) Every kernel but the products, at the sizes of the deck, beside a copy of as many bytes;
// attention beside the rate of products. Collective.
void measure_kernels(const Bench& bench, const std::vector<ScalarType>& types);

// Bytes read and written a second, of this rank, by a copy that moves `bytes` in all.
double copy_rate(const Bench& bench, Device& device, double bytes);

}  // namespace nanotron::apps::bench
