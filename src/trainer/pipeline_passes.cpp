// The micro-batches of a step by the schedule of a pipeline.

#include "nanotron/comm/collectives.hpp"
#include "nanotron/parallel/pipeline/pipeline.hpp"
#include "nanotron/parallel/pipeline/pipeline_partition.hpp"
#include "nanotron/trainer/passes.hpp"

namespace nanotron::trainer {
namespace {

using parallel::Action;
using parallel::Work;

// The chunks of layers of this rank.
template <class T>
class RankStages final : public parallel::PipelineStages<T> {
 public:
  explicit RankStages(const PassContext<T>& context)
      : state_(context.state), model_(context.state.model), gradients_(context.gradients) {}

  void begin_training(double scale) {
    scale_ = scale;
    is_training_ = true;
  }
  void begin_evaluation() { is_training_ = false; }

  Matrix<T> input(index_t chunk, index_t slot) override { return model_.input({chunk, slot}); }
  Matrix<T> output(index_t chunk, index_t slot) override { return model_.output({chunk, slot}); }
  Matrix<T> gradient_buffer(index_t i) override { return model_.stream_gradient(i); }

  void forward(const Action& a, index_t slot) override {
    const model::Slot at{a.chunk, slot};
    model_.set_documents(at, state_.documents_of(a.micro_batch));
    if (model_.has_embedding(a.chunk)) model_.embed(at, state_.inputs_of(a.micro_batch));
    model_.forward(at);
    if (!is_training_ && model_.has_head(a.chunk)) {
      model_.loss(at, state_.targets_of(a.micro_batch), state_.loss_rows_of(a.micro_batch));
    }
  }

  void backward(const Action& a, index_t slot, Matrix<T> dx) override {
    const model::Slot at{a.chunk, slot};
    const model::ParameterTable& table = model_.table();
    if (model_.has_head(a.chunk)) {
      gradients_.begin_head(table.head_unit());
      model_.loss_backward(at, state_.targets_of(a.micro_batch), scale_, state_.loss_rows_of(a.micro_batch), dx);
      gradients_.end_head(table.head_unit());
    }
    for (index_t l = model_.layers(a.chunk) - 1; l >= 0; --l) {
      if (a.work == Work::backward_input) {
        model_.backward_layer_input(at, l, dx);
        gradients_.end_inputs(layer_unit(a.chunk, l));
      } else {
        add_to(layer_unit(a.chunk, l), [&] { model_.backward_layer(at, l, dx); });
      }
    }
    if (model_.has_embedding(a.chunk)) {
      add_to(table.embedding_unit(), [&] { model_.backward_embedding(at, state_.inputs_of(a.micro_batch), dx); });
    }
  }

  void backward_weight(const Action& a, index_t slot) override {
    for (index_t l = model_.layers(a.chunk) - 1; l >= 0; --l) {
      add_to(layer_unit(a.chunk, l), [&] { model_.backward_layer_weight({a.chunk, slot}, l); });
    }
  }

 private:
  index_t layer_unit(index_t chunk, index_t layer) const {
    return model_.table().layer_unit(model_.first_layer(chunk) + layer);
  }

  template <class F>
  void add_to(index_t unit, F&& backward) {
    gradients_.begin(unit);
    backward();
    gradients_.end(unit);
  }

  TrainingState<T>& state_;
  model::Transformer<T>& model_;
  parallel::GradientSum<T>& gradients_;
  double scale_ = 0.0;
  bool is_training_ = true;
};

template <class T>
class PipelinePasses final : public Passes<T> {
 public:
  explicit PipelinePasses(const PassContext<T>& context)
      : model_(context.state.model),
        device_(context.device),
        gradients_(context.gradients),
        embedding_(make_embedding_group(context)),
        stages_(context),
        pipeline_(std::make_unique<parallel::Pipeline<T>>(parallel::schedule_of(context.config), context.grid.pp(),
                                                          stages_, context.device)) {}

  void train(double scale) override {
    stages_.begin_training(scale);
    gradients_.begin_step();
    pipeline_->run();
    gradients_.finish();
    sum_tied_embedding();
  }

  void evaluate() override {
    stages_.begin_evaluation();
    pipeline_->run_forward();
  }

 private:
  // Head and embedding that share their weights on different ranks.
  static comm::Group make_embedding_group(const PassContext<T>& context) {
    comm::Group& pp = context.grid.pp();
    const model::Transformer<T>& model = context.state.model;
    const bool shares = context.config.model.tie_word_embeddings &&
                        model.table()["model/embed_tokens/weight"].local_layers() > 0;
    return comm::Group(pp.communicator().split(shares ? 0 : 1 + pp.rank(), pp.rank()), pp.transport());
  }

  void sum_tied_embedding() {
    if (embedding_.size() == 1) return;
    const model::ParameterTable& table = model_.table();
    const Range words = table.units[static_cast<std::size_t>(table.embedding_unit())].range;
    const nn::ParameterBuffers<T>& p = model_.parameters();
    for (const nn::Placement::Part& part : p.places.reduced.within(words)) {
      comm::all_reduce(embedding_, p.gradient.data() + part.at, static_cast<std::size_t>(part.range.size()),
                       comm::ReduceOp::sum, device_.stream());
    }
  }

  model::Transformer<T>& model_;
  Device& device_;
  parallel::GradientSum<T>& gradients_;
  comm::Group embedding_;
  RankStages<T> stages_;
  std::unique_ptr<parallel::Pipeline<T>> pipeline_;
};

}  // namespace

template <class T>
std::unique_ptr<Passes<T>> make_pipeline_passes(const PassContext<T>& context) {
  return std::make_unique<PipelinePasses<T>>(context);
}

template std::unique_ptr<Passes<double>> make_pipeline_passes(const PassContext<double>&);
template std::unique_ptr<Passes<float>> make_pipeline_passes(const PassContext<float>&);
template std::unique_ptr<Passes<bf16>> make_pipeline_passes(const PassContext<bf16>&);

}  // namespace nanotron::trainer
