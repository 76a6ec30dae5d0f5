#pragma once

// Virtual pipeline stages of a rank, and the slots in which micro-batches keep their activations.

#include "nanotron/tensor/shard.hpp"

namespace nanotron::model {

/// Virtual pipeline stage: layers [begin, end) of the model, and the max number of micro-batches that keep activations
/// of them at once.
struct VirtualStage {
  Range layers;
  index_t slots = 1, offloaded = 0;  // offloaded: of its first layers
};

/// Where the activations of a micro-batch are stored: virtual stage, and index among its slots.
struct Slot {
  index_t stage = 0, index = 0;
};

}  // namespace nanotron::model
