#include "nanotron/trainer/mean_loss.hpp"

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
      kernels::sum(device, state.loss_rows), [&](std::int64_t x) { return over_ranks(larger, x); },
      [&](std::int64_t x) { return over_ranks(add, x); }));
}

template <class T>
MeanLoss mean_loss(Device& device, comm::ProcessGrid& grid, TrainingState<T>& state,
                   ForwardBackwardSchedule<T>& schedule, TokenStage& tokens, data::BatchLoader& loader,
                   index_t global_batch_size) {
  double sum = 0.0;
  index_t targets = 0;
  for (index_t b = 0; b < loader.number_of_batches(); ++b) {
    targets += tokens.load(device, loader, b * global_batch_size).targets;
    schedule.forward();
    sum += loss_sum(device, grid, state);
  }
  return {sum / static_cast<double>(targets), targets};
}

#define NANOTRON_INSTANTIATE(T)                                                                               \
  template double loss_sum<T>(Device&, comm::ProcessGrid&, const TrainingState<T>&);                          \
  template MeanLoss mean_loss<T>(Device&, comm::ProcessGrid&, TrainingState<T>&, ForwardBackwardSchedule<T>&, \
                                 TokenStage&, data::BatchLoader&, index_t);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::trainer
