#include "nanotron/trainer/mean_loss.hpp"

#include "nanotron/base/error.hpp"
#include "nanotron/comm/collectives.hpp"
#include "nanotron/kernels/reduction/exact_sum.hpp"

namespace nanotron::trainer {

template <class T>
double loss_sum(Device& device, comm::ProcessGrid& grid, const TrainingState<T>& state) {
  const auto over_ranks = [&](const auto& combine, std::int64_t value) {
    return combine(grid.pp(), combine(grid.data_parallel(), value));
  };
  const auto larger = [](comm::Group& group, std::int64_t x) { return comm::max(group, x); };
  const auto add = [](comm::Group& group, std::int64_t x) { return comm::sum(group, x); };
  return kernels::value(kernels::over_ranks(
      kernels::sum(device, state.loaded_loss_rows()), [&](std::int64_t x) { return over_ranks(larger, x); },
      [&](std::int64_t x) { return over_ranks(add, x); }));
}

template <class T>
MeanLoss mean_loss(Device& device, comm::ProcessGrid& grid, TrainingState<T>& state,
                   ForwardBackwardSchedule<T>& schedule, TokenStage& tokens, data::BatchLoader& loader,
                   index_t global_batch_size) {
  double sum = 0.0;
  index_t targets = 0;
  for (index_t b = 0; b < loader.number_of_batches(); ++b) {
    const LoadedBatch batch = tokens.load(device, loader, b * global_batch_size);
    state.set_micro_batches(batch.micro_batches);
    targets += batch.targets;
    schedule.forward();
    sum += loss_sum(device, grid, state);
  }
  targets = comm::sum(grid.data_parallel(), targets);
  if (targets == 0)
    fail(ExitCode::data_error, {.what = "no target of the validation data counts in the loss",
                                .expected = "a 1 in /loss_mask for a target of them"});
  return {sum / static_cast<double>(targets), targets};
}

#define NANOTRON_INSTANTIATE(T)                                                                               \
  template double loss_sum<T>(Device&, comm::ProcessGrid&, const TrainingState<T>&);                          \
  template MeanLoss mean_loss<T>(Device&, comm::ProcessGrid&, TrainingState<T>&, ForwardBackwardSchedule<T>&, \
                                 TokenStage&, data::BatchLoader&, index_t);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::trainer
