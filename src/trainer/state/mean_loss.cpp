#include "mean_loss.hpp"

#include "nanotron/comm/collectives.hpp"

namespace nanotron::trainer {

template <class T>
MeanLoss mean_loss(Device& device, comm::ProcessGrid& grid, TrainingState<T>& state,
                   ForwardBackwardSchedule<T>& schedule, TokenStage& tokens, data::BatchLoader& loader,
                   index_t global_batch_size) {
  double sum = 0.0;
  index_t targets = 0;
  for (index_t b = 0; b < loader.number_of_batches(); ++b) {
    const LoadedBatch batch = tokens.load(device, loader, b * global_batch_size);
    state.set_loaded(batch);
    targets += batch.targets;
    schedule.forward();
    sum += state.decision.loss_sum(device, state.loaded_loss_rows());
  }
  targets = comm::sum(grid.data_parallel(), targets);
  return {sum / static_cast<double>(targets), targets};
}

#define NANOTRON_INSTANTIATE(T)                                                                               \
  template MeanLoss mean_loss<T>(Device&, comm::ProcessGrid&, TrainingState<T>&, ForwardBackwardSchedule<T>&, \
                                 TokenStage&, data::BatchLoader&, index_t);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::trainer
