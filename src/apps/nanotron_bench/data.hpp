#pragma once

#include <vector>

#include "bench.hpp"

namespace nanotron::apps::bench {

// Reading tokens on the host, with hashes of blocks of several sizes and without. Rank 0 measures while the others
// wait; the token file of the workload is hashed again and again, and ends with the blocks that the tools write.
// Collective.
void measure_data(const Bench& bench, const std::vector<ScalarType>& types);

}  // namespace nanotron::apps::bench
