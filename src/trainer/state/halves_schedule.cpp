// Without a pipeline: forward, then backward of one micro-batch after another, whose halves go through the layers in
// turns.

#include "nanotron/base/error.hpp"
#include "nanotron/model/layers/halves_in_turns.hpp"
#include "trainer/state/one_stage_schedule.hpp"

namespace nanotron::trainer {
namespace {

// Micro-batches one after another, each as two halves that take turns.
template <class T>
class HalvesSchedule final : public OneStageSchedule<T> {
 public:
  explicit HalvesSchedule(TrainingState<T>& state) : OneStageSchedule<T>(state, halves), turns_(state.model) {}

  void forward_backward(double scale) override {
    require_pairs();
    const model::ParameterTable& table = model_.table();
    const Matrix<T> dx = model_.hidden_gradient(0);
    for (index_t m = 0; m < state_.micro_batches(); m += halves) {
      forward(m);
      state_.begin_backward();
      for (index_t half = 0; half < halves; ++half) backward_loss(m, half, scale, turns_.rows_of(dx, half));
      for (index_t layer = model_.layers(0) - 1; layer >= 0; --layer) {
        for (index_t half = 0; half < halves; ++half) {
          reducers_.accumulate(table.layer_unit(layer), [&] { turns_.backward_layer({}, layer, half, dx); });
        }
      }
      for (index_t half = 0; half < halves; ++half) {
        reducers_.accumulate(table.embedding_unit(), [&] {
          model_.backward_embedding(turns_.half_of({}, half), state_.inputs_of(m + half), turns_.rows_of(dx, half));
        });
      }
    }
  }

  void forward() override {
    require_pairs();
    for (index_t m = 0; m < state_.micro_batches(); m += halves) {
      forward(m);
      for (index_t half = 0; half < halves; ++half)
        model_.loss(turns_.half_of({}, half), state_.targets_of(m + half), state_.loss_rows_of(m + half).loss);
    }
  }

 private:
  static constexpr index_t halves = model::HalvesInTurns<T>::halves;

  void require_pairs() const {
    NANOTRON_REQUIRE(state_.micro_batches() % halves == 0, "{} halves of micro-batches", state_.micro_batches());
  }

  void forward(index_t micro_batch) {
    for (index_t half = 0; half < halves; ++half) {
      const model::Slot slot = turns_.half_of({}, half);
      model_.set_packing(slot, state_.packing_of(micro_batch + half));
      model_.embed(slot, state_.inputs_of(micro_batch + half));
    }
    turns_.forward({});
  }

  void backward_loss(index_t micro_batch, index_t half, double scale, Matrix<T> dx) {
    const model::Slot slot = turns_.half_of({}, half);
    const index_t m = micro_batch + half;
    model_.set_later_tokens(state_.later_tokens_of(m));
    reducers_.accumulate(model_.table().head_source(),
                         [&] { model_.loss_backward(slot, state_.targets_of(m), scale, state_.loss_rows_of(m), dx); });
    for (index_t i = 0; i < model_.steps_after_loss(); ++i)
      reducers_.accumulate(model_.source_after_loss(i), [&] { model_.backward_after_loss(slot, i, dx); });
  }

  using OneStageSchedule<T>::state_, OneStageSchedule<T>::model_, OneStageSchedule<T>::reducers_;
  model::HalvesInTurns<T> turns_;
};

}  // namespace

template <class T>
std::unique_ptr<ForwardBackwardSchedule<T>> make_halves_schedule(TrainingState<T>& state) {
  return std::make_unique<HalvesSchedule<T>>(state);
}

#define NANOTRON_INSTANTIATE(T) \
  template std::unique_ptr<ForwardBackwardSchedule<T>> make_halves_schedule(TrainingState<T>&);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::trainer
