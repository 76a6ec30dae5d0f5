#pragma once

#include "bench.hpp"

namespace nanotron::apps::bench {

/// Gathers that feed a product and sums of a product over the tp group, in chunks and one after the other, beside the
/// product and the communication alone. Collective.
void measure_overlap(const Bench& bench, const std::vector<ScalarType>& types);

}  // namespace nanotron::apps::bench
