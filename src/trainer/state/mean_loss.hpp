#pragma once

// The loss of global batches, over all ranks.

#include "nanotron/comm/process_grid.hpp"
#include "nanotron/data/batch_loader.hpp"
#include "nanotron/trainer/state/forward_backward.hpp"
#include "nanotron/trainer/state/token_stage.hpp"
#include "nanotron/trainer/state/training_state.hpp"

namespace nanotron::trainer {

struct MeanLoss {
  double loss = 0.0;  // nats per token; NaN without a target
  index_t targets = 0;
};

/// Forward of all samples of a loader of validation data. Collective over the world; overwrites the tokens of the
/// state.
template <class T>
MeanLoss mean_loss(Device& device, comm::ProcessGrid& grid, TrainingState<T>& state,
                   ForwardBackwardSchedule<T>& schedule, TokenStage& tokens, data::BatchLoader& loader,
                   index_t global_batch_size);

}  // namespace nanotron::trainer
