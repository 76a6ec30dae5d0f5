#pragma once

#include "bench.hpp"

namespace nanotron::apps::bench {

/// Bubble of each schedule over the ranks of the run: by count, and measured with messages of the deck's size and
/// delays in place of computation. Collective.
void measure_pipelines(const Bench& bench, const std::vector<ScalarType>& types);

}  // namespace nanotron::apps::bench
