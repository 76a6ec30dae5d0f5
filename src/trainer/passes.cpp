#include "nanotron/trainer/passes.hpp"

namespace nanotron::trainer {
namespace {

template <class T>
class WholeModel final : public Passes<T> {
 public:
  WholeModel(TrainingState<T>& state, parallel::GradientSum<T>& gradients)
      : state_(state), gradients_(gradients) {}

  void train(double scale) override {
    gradients_.begin_step();
    for (index_t m = 0; m < state_.micro_batches(); ++m) {
      forward(m);
      backward(m, scale);
    }
    gradients_.finish();
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

  void backward(index_t micro_batch, double scale) {
    model::Transformer<T>& model = state_.model;
    const model::ParameterTable& table = model.table();
    gradients_.begin_head(table.head_unit());
    model.loss_backward({}, state_.targets_of(micro_batch), scale, state_.loss_rows_of(micro_batch), dx());
    gradients_.end_head(table.head_unit());
    for (index_t layer = model.layers(0) - 1; layer >= 0; --layer) {
      gradients_.begin(table.layer_unit(layer));
      model.backward_layer({}, layer, dx());
      gradients_.end(table.layer_unit(layer));
    }
    gradients_.begin(table.embedding_unit());
    model.backward_embedding({}, state_.inputs_of(micro_batch), dx());
    gradients_.end(table.embedding_unit());
  }

  TrainingState<T>& state_;
  parallel::GradientSum<T>& gradients_;
};

}  // namespace

template <class T>
std::unique_ptr<Passes<T>> make_passes(const PassContext<T>& context) {
  if (context.grid.pp().size() > 1) return make_pipeline_passes(context);
  return std::make_unique<WholeModel<T>>(context.state, context.gradients);
}

template std::unique_ptr<Passes<double>> make_passes(const PassContext<double>&);
template std::unique_ptr<Passes<float>> make_passes(const PassContext<float>&);
template std::unique_ptr<Passes<bf16>> make_passes(const PassContext<bf16>&);

}  // namespace nanotron::trainer
