#pragma once

#include <vector>

#include "bench.hpp"

namespace nanotron::apps::bench {

// (c) all_reduce, all_gather and reduce_scatter of the tp group in these types and of the dp group
// in their master types, compared with a copy of as many bytes. Collective.
void measure_collectives(const Bench& bench, const std::vector<ScalarType>& types);

}  // namespace nanotron::apps::bench
