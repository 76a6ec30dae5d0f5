#include "nanotron/trainer/state/forward_backward.hpp"

#include "nanotron/comm/collectives.hpp"
#include "trainer/state/one_stage_schedule.hpp"

namespace nanotron::trainer {
namespace {

// Without a pipeline: forward, then backward of one micro-batch after another.
template <class T>
class SingleStageSchedule final : public OneStageSchedule<T> {
 public:
  explicit SingleStageSchedule(TrainingState<T>& state) : OneStageSchedule<T>(state, 1) {}

  void forward_backward(double scale) override {
    const model::ParameterTable& table = model_.table();
    const Matrix<T> dx = model_.hidden_gradient(0);
    for (index_t m = 0; m < state_.micro_batches(); ++m) {
      load(m);
      model_.forward({});
      state_.begin_backward();
      model_.set_later_tokens(state_.later_tokens_of(m));
      reducers_.accumulate(table.head_source(),
                           [&] { model_.loss_backward({}, state_.targets_of(m), scale, state_.loss_rows_of(m), dx); });
      for (index_t i = 0; i < model_.steps_after_loss(); ++i) {
        reducers_.accumulate(model_.source_after_loss(i), [&] { model_.backward_after_loss({}, i, dx); });
      }
      for (index_t layer = model_.layers(0) - 1; layer >= 0; --layer) {
        reducers_.accumulate(table.layer_unit(layer), [&] { model_.backward_layer({}, layer, dx); });
      }
      reducers_.accumulate(table.embedding_unit(), [&] { model_.backward_embedding({}, state_.inputs_of(m), dx); });
    }
  }

  void forward() override {
    for (index_t m = 0; m < state_.micro_batches(); ++m) {
      load(m);
      model_.forward({});
      model_.loss({}, state_.targets_of(m), state_.loss_rows_of(m).loss);
    }
  }

 private:
  void load(index_t micro_batch) {
    model_.set_packing({}, state_.packing_of(micro_batch));
    model_.embed({}, state_.inputs_of(micro_batch));
  }

  using OneStageSchedule<T>::state_, OneStageSchedule<T>::model_, OneStageSchedule<T>::reducers_;
};

}  // namespace

template <class T>
std::unique_ptr<ForwardBackwardSchedule<T>> make_forward_backward(const deck::Config& config, comm::ProcessGrid& grid,
                                                                  Device& device, TrainingState<T>& state) {
  if (grid.pp().size() > 1) return make_pipeline_executor<T>(config, grid, device, state);
  if (state.model.in_turns() > 1) return make_halves_schedule<T>(state);
  return std::make_unique<SingleStageSchedule<T>>(state);
}

#define NANOTRON_INSTANTIATE(T)                                                                                       \
  template std::unique_ptr<ForwardBackwardSchedule<T>> make_forward_backward(const deck::Config&, comm::ProcessGrid&, \
                                                                             Device&, TrainingState<T>&);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

template <class T>
MeanLoss mean_loss(Device& device, comm::ProcessGrid& grid, TrainingState<T>& state,
                   ForwardBackwardSchedule<T>& schedule, TokenBuffer& tokens, data::BatchLoader& loader,
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
                                 TokenBuffer&, data::BatchLoader&, index_t);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::trainer
