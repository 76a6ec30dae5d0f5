#pragma once

// Where the numbers of a bad step begin not to be finite, as text for the log and the error.

#include <string>

#include "nanotron/data/batch_loader.hpp"
#include "nanotron/trainer/state/training_state.hpp"

namespace nanotron::trainer {

/// The first in this order whose numbers, or their squares, are not finite, and the first rank that has it: parameters
/// in the order of forward; losses, by sample and position; reduced gradients in the order of backward, where a layer
/// spoils those before it. "none" where all are finite. loader: of the samples from first_sample on, whose step the
/// state holds. Waits for the device. Collective over the world, the same on all ranks.
template <class T>
std::string first_nonfinite(Device& device, comm::ProcessGrid& grid, const TrainingState<T>& state,
                            const SequenceShard& shard, const data::BatchLoader& loader, index_t first_sample);

}  // namespace nanotron::trainer
