#pragma once

// Seconds of a kernel of this program (trainer/plan/kernel_time.hpp), or of other software that does the same step.

#include "nanotron/deck/machine.hpp"
#include "nanotron/simulation/software.hpp"
#include "nanotron/tensor/work.hpp"

namespace nanotron::simulation {

/// What a step of other sizes needs to know of the deck, where the software is not this program.
struct LayerSizes {
  index_t hidden = 0, intermediate = 0;  // of this rank
};

/// Seconds of one call of the row, launches included.
double kernel_seconds(const WorkRow& row, const deck::Machine& machine, const Software& software,
                      const LayerSizes& sizes);

}  // namespace nanotron::simulation
