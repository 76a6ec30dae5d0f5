#include "nanotron/trainer/passes.hpp"

namespace nanotron::trainer {
namespace {

template <class T>
class WholeModel final : public Passes<T> {
 public:
  WholeModel(TrainingState<T>& state, parallel::DataParallel<master_t<T>>& gradients)
      : state_(state), gradients_(gradients) {}

  void train(double scale) override {
    const index_t last = state_.micro_batches() - 1;
    for (index_t m = 0; m < last; ++m) {
      forward_and_loss_backward(m, scale);
      for (index_t layer = state_.model.layers(0) - 1; layer >= 0; --layer) state_.model.backward_layer({}, layer, dx());
      state_.model.backward_embedding(state_.inputs_of(m), dx());
    }
    train_and_sum(last, scale);
  }

  void evaluate() override {
    for (index_t m = 0; m < state_.micro_batches(); ++m) {
      forward(m);
      state_.model.loss({}, state_.targets_of(m), state_.loss_rows_of(m));
    }
  }

 private:
  Matrix<T> dx() const { return state_.model.stream_gradient(0); }

  void forward(index_t micro_batch) {
    state_.model.set_documents({}, state_.documents_of(micro_batch));
    state_.model.embed({}, state_.inputs_of(micro_batch));
    state_.model.forward({});
  }

  void forward_and_loss_backward(index_t micro_batch, double scale) {
    forward(micro_batch);
    state_.model.loss_backward({}, state_.targets_of(micro_batch), scale, state_.loss_rows_of(micro_batch), dx());
  }

  // The last micro-batch: gradients are sent off as backward completes them.
  void train_and_sum(index_t micro_batch, double scale) {
    const model::ParameterTable& table = state_.model.table();
    forward_and_loss_backward(micro_batch, scale);
    state_.model.sum_partial_gradients({table.head_begin, table.size});
    gradients_.ready(table.head_begin);
    for (index_t layer = state_.model.layers(0) - 1; layer >= 0; --layer) {
      state_.model.backward_layer({}, layer, dx());
      state_.model.sum_partial_gradients({table.layer_begin(layer), table.layer_begin(layer + 1)});
      gradients_.ready(table.layer_begin(layer));
    }
    state_.model.backward_embedding(state_.inputs_of(micro_batch), dx());
    gradients_.finish();
  }

  TrainingState<T>& state_;
  parallel::DataParallel<master_t<T>>& gradients_;
};

}  // namespace

template <class T>
std::unique_ptr<Passes<T>> make_passes(TrainingState<T>& state, parallel::DataParallel<master_t<T>>& gradients) {
  return std::make_unique<WholeModel<T>>(state, gradients);
}

template std::unique_ptr<Passes<double>> make_passes(TrainingState<double>&, parallel::DataParallel<double>&);
template std::unique_ptr<Passes<float>> make_passes(TrainingState<float>&, parallel::DataParallel<float>&);
template std::unique_ptr<Passes<bf16>> make_passes(TrainingState<bf16>&, parallel::DataParallel<float>&);

}  // namespace nanotron::trainer
