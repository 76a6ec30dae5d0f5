// Runs the micro-batches of a step by a pipeline schedule (parallel/pipeline).

#include "nanotron/base/error.hpp"
#include "nanotron/comm/collectives.hpp"
#include "nanotron/data/order/batch_ramp.hpp"
#include "nanotron/deck/later_tokens.hpp"
#include "nanotron/model/layers/halves_in_turns.hpp"
#include "nanotron/parallel/pipeline/pipeline.hpp"
#include "nanotron/parallel/pipeline/pipeline_partition.hpp"
#include "nanotron/trainer/state/forward_backward.hpp"

namespace nanotron::trainer {
namespace {

using parallel::Action;
using parallel::Work;

constexpr const char* first_use = "first use of kernels";

// The virtual stages of this rank. A micro-batch of the schedule has one or two parts in the state, which take turns.
template <class T>
class RankStages final : public parallel::PipelineStages<T> {
 public:
  explicit RankStages(TrainingState<T>& state)
      : state_(state), model_(state.model), reducers_(state.reducers), parts_(state.model.in_turns()) {
    if (parts_ > 1) turns_.emplace(state.model);
  }

  void begin_training(double scale) {
    scale_ = scale;
    is_training_ = true;
  }
  void begin_evaluation() { is_training_ = false; }
  index_t parts() const { return parts_; }

  Matrix<T> input(index_t stage, index_t slot) override {
    return turns_ ? turns_->input({stage, slot}) : model_.input({stage, slot});
  }
  Matrix<T> output(index_t stage, index_t slot) override {
    return turns_ ? turns_->output({stage, slot}) : model_.output({stage, slot});
  }
  Matrix<T> gradient_buffer(index_t i) override { return model_.hidden_gradient(i); }

  void prepare(index_t virtual_stage) override { model_.update_weights(virtual_stage); }
  void forward(const Action& a, index_t slot) override {
    const index_t first = a.micro_batch * parts_;
    for (index_t part = 0; part < parts_; ++part) {
      const model::Slot at = slot_of(a, slot, part);
      model_.set_packing(at, state_.packing_of(first + part));
      if (model_.has_embedding(a.virtual_stage)) model_.embed(at, state_.inputs_of(first + part));
    }
    if (turns_) {
      turns_->forward({a.virtual_stage, slot});
    } else {
      model_.forward({a.virtual_stage, slot});
    }
    for (index_t part = 0; part < parts_ && !is_training_ && model_.has_head(a.virtual_stage); ++part) {
      model_.loss(slot_of(a, slot, part), state_.targets_of(first + part), state_.loss_rows_of(first + part).loss);
    }
  }

  void backward(const Action& a, index_t slot, Matrix<T> dx) override {
    state_.begin_backward();
    const index_t first = a.micro_batch * parts_;
    if (model_.has_head(a.virtual_stage)) {
      for (index_t part = 0; part < parts_; ++part)
        backward_loss(first + part, slot_of(a, slot, part), rows_of(dx, part));
    }
    for (index_t l = model_.layers(a.virtual_stage) - 1; l >= 0; --l) {
      for (index_t part = 0; part < parts_; ++part) {
        if (a.work == Work::backward_input) {
          backward_layer_input(a, slot, l, part, dx);
          reducers_.end_inputs(layer_source(a.virtual_stage, l));
        } else {
          reducers_.accumulate(layer_source(a.virtual_stage, l), [&] { backward_layer(a, slot, l, part, dx); });
        }
      }
    }
    for (index_t part = 0; part < parts_ && model_.has_embedding(a.virtual_stage); ++part) {
      reducers_.accumulate(model_.table().embedding_unit(), [&] {
        model_.backward_embedding(slot_of(a, slot, part), state_.inputs_of(first + part), rows_of(dx, part));
      });
    }
  }

  void backward_weight(const Action& a, index_t slot) override {
    for (index_t l = model_.layers(a.virtual_stage) - 1; l >= 0; --l) {
      for (index_t part = 0; part < parts_; ++part) {
        reducers_.accumulate(layer_source(a.virtual_stage, l),
                             [&] { model_.backward_layer_weight(slot_of(a, slot, part), l); });
      }
    }
  }

 private:
  index_t layer_source(index_t stage, index_t layer) const {
    return model_.table().layer_unit(model_.first_layer(stage) + layer);
  }
  model::Slot slot_of(const Action& a, index_t slot, index_t part) const {
    return {a.virtual_stage, slot * parts_ + part};
  }
  Matrix<T> rows_of(const Matrix<T>& dx, index_t part) const { return turns_ ? turns_->rows_of(dx, part) : dx; }

  void backward_loss(index_t m, const model::Slot& at, Matrix<T> dx) {
    model_.set_later_tokens(state_.later_tokens_of(m));
    reducers_.accumulate(model_.table().head_source(),
                         [&] { model_.loss_backward(at, state_.targets_of(m), scale_, state_.loss_rows_of(m), dx); });
    for (index_t i = 0; i < model_.steps_after_loss(); ++i) {
      reducers_.accumulate(model_.source_after_loss(i), [&] { model_.backward_after_loss(at, i, dx); });
    }
  }
  void backward_layer(const Action& a, index_t slot, index_t l, index_t part, Matrix<T> dx) {
    if (turns_) return turns_->backward_layer({a.virtual_stage, slot}, l, part, dx);
    model_.backward_layer({a.virtual_stage, slot}, l, dx);
  }
  void backward_layer_input(const Action& a, index_t slot, index_t l, index_t part, Matrix<T> dx) {
    if (turns_) return turns_->backward_layer_input({a.virtual_stage, slot}, l, part, dx);
    model_.backward_layer_input({a.virtual_stage, slot}, l, dx);
  }

  TrainingState<T>& state_;
  model::Transformer<T>& model_;
  parallel::Reducers<T>& reducers_;
  index_t parts_;
  std::optional<model::HalvesInTurns<T>> turns_;
  double scale_ = 0.0;
  bool is_training_ = true;
};

template <class T>
class PipelineExecutor final : public ForwardBackwardSchedule<T> {
 public:
  PipelineExecutor(const deck::Config& config, comm::ProcessGrid& grid, Device& device, TrainingState<T>& state)
      : model_(state.model),
        pp_(grid.pp()),
        embedding_(grid.embedding()),
        device_(device),
        stages_(state),
        embeds_at_end_(deck::embeds_at_end(config.model)),
        state_(state) {
    for (const index_t batch_size : data::BatchRamp(config.data).sizes()) {
      auto& made = batches_.emplace_back(std::make_unique<OfBatch>(parallel::schedule_of(config, batch_size)));
      made->pipeline.emplace(made->schedule, pp_, stages_, device);
    }
  }

  void forward_backward(double scale) override {
    stages_.begin_training(scale);
    loaded().run();
  }

  void forward() override {
    stages_.begin_evaluation();
    loaded().run_forward();
  }

  void compute_once() override {
    if (!loads_kernels()) return;
    const Region region(device_.timers(), first_use);
    fill_tokens();
    stages_.begin_training(1.0);
    state_.reducers.begin_step(stages_.parts());
    batches_.front()->pipeline->compute_once();
    state_.reducers.finish();
  }

  void compute_once_forward() override {
    if (!loads_kernels()) return;
    const Region region(device_.timers(), first_use);
    fill_tokens();
    stages_.begin_evaluation();
    batches_.front()->pipeline->compute_once_forward();
  }

  void all_reduce_tied_gradients() override {
    if (embeds_at_end_) all_reduce_embedding_gradient();
  }

  comm::StepTraffic traffic() const override {
    const OfBatch& largest = *batches_.back();
    comm::StepTraffic sum = largest.pipeline->traffic();
    std::vector<model::SourceUse> uses;
    for (const Action& a : largest.schedule.actions[static_cast<std::size_t>(pp_.rank())]) {
      const model::LayerTraffic stage = model_.traffic(a.virtual_stage);
      switch (a.work) {
        case Work::forward:
          sum += stages_.parts() * stage.forward;
          break;
        case Work::backward:
          sum += stages_.parts() * stage.backward;
          break;
        case Work::backward_input:
          sum += stages_.parts() * stage.backward_input;
          break;
        case Work::backward_weight:
          sum += stages_.parts() * stage.backward_weight;
          break;
      }
      if (a.work == Work::forward) std::ranges::copy(model_.forward_uses(a.virtual_stage), std::back_inserter(uses));
      if (parallel::is_gradient(a.work))
        std::ranges::copy(model_.backward_uses(a.virtual_stage), std::back_inserter(uses));
      if (a.work == Work::backward_weight)
        std::ranges::copy(model_.weight_uses(a.virtual_stage), std::back_inserter(uses));
    }
    return sum + model_.weights().traffic(uses);
  }

 private:
  // For each size of the global batch.
  struct OfBatch {
    explicit OfBatch(parallel::PipelineSchedule of) : schedule(std::move(of)) {}
    parallel::PipelineSchedule schedule;
    std::optional<parallel::Pipeline<T>> pipeline;
  };
  // GEMMs in a fixed order are kernels of the program, loaded when it starts.
  bool loads_kernels() const { return built_for == Processor::gpu && device_.gemm_mode() == GemmMode::library; }
  // Tokens that the model has; none for experts, whose GEMMs Transformer has run.
  void fill_tokens() {
    // (An array with a name: of a list of views in a template nvcc loses the braces.)
    const Vector<std::int32_t> all[] = {state_.inputs,          state_.targets,      state_.document_starts,
                                        state_.sequence_tokens, state_.later.inputs, state_.later.targets};
    for (const Vector<std::int32_t>& tokens : all) Kokkos::deep_copy(device_.exec(), tokens, 0);
  }
  parallel::Pipeline<T>& loaded() {
    const auto found = std::ranges::find_if(batches_, [&](const auto& made) {
      return made->schedule.micro_batches * stages_.parts() == state_.micro_batches();
    });
    NANOTRON_REQUIRE(found != batches_.end(), "no schedule for {} micro-batches", state_.micro_batches());
    return *(*found)->pipeline;
  }
  // Whether two ranks use the embedding, the first stage and the last, of which this is one.
  bool shares_embedding() const {
    const parallel::PipelineSchedule& schedule = batches_.back()->schedule;
    const bool is_apart = schedule.location_of(schedule.stages() - 1).rank != schedule.location_of(0).rank;
    return is_apart && model_.table()["model/embed_tokens/weight"].local_layers() > 0;
  }

  void all_reduce_embedding_gradient() {
    if (!shares_embedding()) return;
    const model::ParameterTable& table = model_.table();
    const nn::ParameterBuffers<T>& p = model_.parameters();
    for (const nn::BufferLayout::Part& part : p.layouts.reduced.within(table.unit(table.embedding_unit()).range)) {
      comm::all_reduce(embedding_, p.gradient.data() + part.at, static_cast<std::size_t>(part.range.size()),
                       comm::ReduceOp::sum, device_.stream());
    }
  }

  model::Transformer<T>& model_;
  comm::Group &pp_, &embedding_;
  Device& device_;
  RankStages<T> stages_;
  bool embeds_at_end_;
  TrainingState<T>& state_;
  std::vector<std::unique_ptr<OfBatch>> batches_;
};

}  // namespace

template <class T>
std::unique_ptr<ForwardBackwardSchedule<T>> make_pipeline_executor(const deck::Config& config, comm::ProcessGrid& grid,
                                                                   Device& device, TrainingState<T>& state) {
  return std::make_unique<PipelineExecutor<T>>(config, grid, device, state);
}

#define NANOTRON_INSTANTIATE(T)                                                                                        \
  template std::unique_ptr<ForwardBackwardSchedule<T>> make_pipeline_executor(const deck::Config&, comm::ProcessGrid&, \
                                                                              Device&, TrainingState<T>&);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::trainer
