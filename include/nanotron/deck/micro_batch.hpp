#pragma once

// What the model computes at once: a micro-batch, or with parallel%ep_overlap one half of it after the other, by
// sequences. Batches are loaded, and counted, in these parts; a pipeline schedule counts micro-batches.

#include "nanotron/deck/config.hpp"

namespace nanotron::deck {

inline std::int64_t parts_of_micro_batch(const ParallelConfig& parallel) { return parallel.ep_overlap ? 2 : 1; }

/// Sequences of a part.
inline std::int64_t sequences_at_once(const Config& config) {
  return config.data.micro_batch_size / parts_of_micro_batch(config.parallel);
}

/// &data, with parts as micro-batches.
inline DataConfig data_in_parts(const Config& config) {
  DataConfig data = config.data;
  data.micro_batch_size = sequences_at_once(config);
  return data;
}

}  // namespace nanotron::deck
