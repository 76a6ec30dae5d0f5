#include "nanotron/trainer/state/training_state.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include "nanotron/base/types.hpp"
#include "nanotron/comm/process_grid.hpp"
#include "nanotron/data/order/batch_ramp.hpp"
#include "nanotron/deck/config.hpp"
#include "nanotron/deck/micro_batch.hpp"
#include "nanotron/model/layers/transformer.hpp"
#include "nanotron/optim/update_decision.hpp"
#include "nanotron/parallel/pipeline/pipeline.hpp"
#include "nanotron/parallel/pipeline/pipeline_partition.hpp"
#include "trainer/state/statistics_parts.hpp"

namespace nanotron::trainer {
namespace {

// The ranks that own the gradient of a section. Consecutive sections of the same groups form one part.
template <class T>
std::vector<optim::NormPart> norm_parts(const model::Transformer<T>& model, const model::Sharding& sharding,
                                        comm::ProcessGrid& grid) {
  const model::ParameterTable& table = model.table();
  std::vector<optim::NormPart> parts;
  for (const model::Section& section : table.sections) {
    const std::vector<comm::Group*> groups = grid.owners(section.replicas);
    if (parts.empty() || parts.back().groups != groups) parts.push_back({.owned = {}, .groups = groups});
    if (!grid.may_own(section.replicas)) continue;
    std::ranges::copy(optim::owned_gradient_ranges(table, model.parameters().layouts, sharding, section.flat),
                      std::back_inserter(parts.back().owned));
  }
  return parts;
}

bool is_layout_invariant(const deck::Config& config) {
  return config.precision.reproducible == deck::Reproducible::layout;
}

index_t tokens_of_rank(const deck::Config& config, const comm::ProcessGrid& grid) {
  return config.data.global_batch_size / config.parallel.dp * sequence_layout(config)[grid.cp_rank()].length();
}

// The layout-invariant reducer shards units over the whole data-parallel group.
int unit_shards(const deck::Config& config) {
  const deck::ParallelConfig& p = config.parallel;
  return static_cast<int>(is_layout_invariant(config) ? p.dp * p.cp : deck::shard_group_size(p));
}

// Routers read how many tokens a sequence has.
index_t routed_sequences_of_rank(const deck::Config& config) {
  return deck::feed_forward_sizes(config.model).is_routed() ? config.data.global_batch_size / config.parallel.dp : 0;
}

std::vector<Vector<double>> rows_of(const std::vector<AuxiliaryRows>& all) {
  std::vector<Vector<double>> rows;
  for (const AuxiliaryRows& of : all) rows.push_back(of.rows);
  return rows;
}

index_t documents_of_rank(const deck::Config& config) {
  if (config.data.document_mask == deck::DocumentMask::none) return 0;
  return config.data.global_batch_size / config.parallel.dp * config.data.sequence_length;
}

model::TransformerSetup with_observers(model::TransformerSetup setup, const nn::ScoreMaxima& maxima,
                                       nn::ReceivedRows& received) {
  setup.score_maxima = maxima;
  setup.received_rows = &received;
  return setup;
}

// With reproducible = 'layout'. A GEMM in a fixed order adds its whole sum to C once, as the reduction does: s + c
// (kernels/gemm/gemm.hpp). Not so where a weight has several GEMMs (tiles), or GEMMs with a factor (adapters).
model::UnitGradients gradients_in_order(const deck::Config& config) {
  if (neighbouring_sequences(config) > 1) return model::UnitGradients::apart;
  const deck::ParallelConfig& p = config.parallel;
  const bool adds_once = p.mlp_tile == 0 && config.lora.rank == 0 && p.compression == deck::Compression::none;
  return p.dp * p.cp == 1 && adds_once ? model::UnitGradients::in_sums : model::UnitGradients::in_slots;
}

}  // namespace

index_t neighbouring_sequences(const deck::Config& config) {
  // Ranks have sequences of the same classes of length at the same time.
  if (config.data.length_buckets && !is_layout_invariant(config)) return config.data.micro_batch_size;
  return config.data.global_batch_size / deck::sum_shards(config).batch;
}

model::Sharding sharding_of(const deck::Config& config, comm::ProcessGrid& grid) {
  const bool keeps_order = is_layout_invariant(config);
  const auto of = [&](comm::ReplicaSet replicas) {
    return model::SectionSharding{.group = &grid.data_groups(replicas).shard,
                                  .gradients = keeps_order ? grid.shape().sequences_at_once(replicas) : 1};
  };
  const auto sections = comm::PerReplicaSet<model::SectionSharding>::of_each(of);
  const bool is_sharded = sections[comm::ReplicaSet::data_parallel].group->size() > 1;
  return {.stage = is_sharded ? static_cast<int>(config.parallel.zero_stage) : 0,
          .gradients = keeps_order ? gradients_in_order(config) : model::UnitGradients::by_stage,
          .sections = sections};
}

bool computes_bad_steps_again(const deck::Config& config) {
  const deck::RunConfig& run = config.run;
  const bool is_wanted =
      run.spike_factor > 0.0 || run.on_bad_step != deck::OnBadStep::skip || run.check_memory_every > 0;
  return is_wanted && parallel::keeps_no_state(config.parallel);
}

kernels::BackwardAlgorithm attention_backward_of(const deck::Config& config) {
  const bool repeats = config.precision.reproducible == deck::Reproducible::run || computes_bad_steps_again(config);
  return repeats && !is_layout_invariant(config) ? kernels::BackwardAlgorithm::deterministic
                                                 : kernels::BackwardAlgorithm::fastest;
}

SumOrder order_of_tokens(const deck::Config& config, comm::ProcessGrid& grid) {
  if (!is_layout_invariant(config)) return {};
  const auto shards = static_cast<int>(deck::sum_shards(config).context);
  return SumOrder({{config.data.sequence_length, 1}}, shards, grid.cp().size(), grid.cp_rank());
}

model::TransformerSetup transformer_setup(const deck::Config& config, comm::ProcessGrid& grid) {
  std::vector<model::VirtualStage> stages;
  index_t hidden_gradients = 1;
  const deck::SumShards shards = deck::sum_shards(config);
  if (config.parallel.pp > 1) {
    for (const index_t batch_size : data::BatchRamp(config.data).sizes()) {  // fewer micro-batches may need more slots
      const parallel::PipelineSchedule schedule = parallel::schedule_of(config, batch_size);
      std::vector<model::VirtualStage> needed =
          parallel::virtual_stages_of_rank(parallel::stage_layers(config), schedule, grid.pp_rank());
      for (std::size_t i = 0; i < stages.size(); ++i) needed[i].slots = std::max(needed[i].slots, stages[i].slots);
      stages = std::move(needed);
      hidden_gradients = std::max(hidden_gradients, parallel::gradient_buffers(schedule, grid.pp_rank()));
    }
  }
  const bool keeps_order = is_layout_invariant(config);
  for (model::VirtualStage& stage : stages) stage.slots *= deck::parts_of_micro_batch(config.parallel);
  return {.model = config.model,
          .recompute = deck::LayerRecompute(config.parallel),
          .objective = nn::objective_of(config),
          .lora = config.lora,
          .purpose = model::Purpose::training,
          .operands = config.precision.compute,
          .fp8_scales = config.precision.fp8_scales,
          .fp8_experts = config.precision.fp8_experts,
          .sequences = deck::sequences_at_once(config),
          .in_turns = deck::parts_of_micro_batch(config.parallel),
          .length = config.data.sequence_length,
          .key_length = config.data.sequence_length,
          .stages = std::move(stages),
          .offloaded_layers = config.parallel.offload_layers,
          .hidden_gradients = hidden_gradients,
          .backward = parallel::splits_backward(config.parallel) ? model::Backward::two_parts : model::Backward::whole,
          .attention_backward = attention_backward_of(config),
          .tp_mode = config.parallel.tp_mode,
          .overlap = nn::tp_overlap(config.parallel),
          .mlp_tile = config.parallel.mlp_tile,
          .expert_gemms = config.run.expert_gemms,
          .expert_rows = config.parallel.ep_row_type,
          .recompute_dispatch = config.parallel.recompute_dispatch,
          .tp = &grid.tp(),
          .cp = &grid.cp(),
          .cp_groups = {&grid.cp_all_to_all(), &grid.cp_ring()},
          .ep = &grid.ep(),
          .ep_nodes = {&grid.ep_across(), &grid.ep_within()},
          .ep_spans_tp = grid.shape().ep_spans_tp,
          .sharding = sharding_of(config, grid),
          .unit_shards = unit_shards(config),
          .seed = static_cast<std::uint64_t>(config.run.seed),
          .cp_all_to_all = context_degrees(config).all_to_all,
          .cp_gathered = context_degrees(config).gathered,
          .document_mask = config.data.document_mask,
          .length_buckets = config.data.length_buckets,
          .tensor_shards = keeps_order ? static_cast<int>(shards.tensor) : 0,
          .norm_shards = keeps_order ? static_cast<int>(shards.norm) : 0,
          .context_shards = keeps_order ? static_cast<int>(shards.context) : 0};
}

AuxiliaryRows::AuxiliaryRows(Arena& arena, index_t tokens)
    : rows(arena.take<double>(MemoryKind::workspace, tokens)),
      sum(arena.take<kernels::ExactSum>(MemoryKind::workspace, tokens > 0 ? 1 : 0)),
      top_place(arena.take<std::int64_t>(MemoryKind::workspace, tokens > 0 ? 1 : 0)) {}

template <class T>
TrainingState<T>::TrainingState(const deck::Config& config, comm::ProcessGrid& grid, Device& device, Arena& arena)
    : sharding(sharding_of(config, grid)),
      score_maxima(config, grid.data_parallel(), grid.tp(), arena),
      received_rows(std::make_unique<nn::ReceivedRows>()),
      model(with_observers(transformer_setup(config, grid), score_maxima, *received_rows), device, arena),
      optimizer(optim::make_optimizer<M>(
          config,
          {.table = model.table(), .layouts = model.parameters().layouts, .sharding = sharding, .tp = &grid.tp()},
          arena)),
      weight_rule(optim::make_weight_rule<M>(
          config, {.table = model.table(), .layouts = model.parameters().layouts, .sharding = sharding}, score_maxima,
          arena)),
      average(config.optimizer, model.table(), model.parameters().layouts, arena),
      reducers(config, model, sharding, grid, device, arena),
      inputs(arena.take<std::int32_t>(MemoryKind::workspace, tokens_of_rank(config, grid))),
      targets(arena.take<std::int32_t>(MemoryKind::workspace, tokens_of_rank(config, grid))),
      loss_rows(arena.take<double>(MemoryKind::workspace, tokens_of_rank(config, grid))),
      auxiliary(arena, nn::objective_of(config).has_auxiliary() ? tokens_of_rank(config, grid) : 0),
      later(config, model.table().appended_layers, arena, tokens_of_rank(config, grid)),
      document_starts(arena.take<std::int32_t>(MemoryKind::workspace, documents_of_rank(config))),
      sequence_tokens(arena.take<std::int32_t>(MemoryKind::workspace, routed_sequences_of_rank(config))),
      rewards(reward_rows(config, arena)),
      pairs({.beta = config.preference.beta,
             .micro_batches = max_micro_batches(),
             .sequences = deck::sequences_at_once(config),
             .rows = {.shard = sequence_layout(config)[grid.cp_rank()],
                      .length = config.data.sequence_length,
                      .document_starts = document_starts},
             .rewards = rows_of(rewards),
             .cp = &grid.cp(),
             .tokens = order_of_tokens(config, grid)},
            arena),
      decision({.norm = norm_parts(model, sharding, grid),
                .model = {&grid.tp(), &grid.pp()},
                .loss = {&grid.data_parallel(), &grid.pp()},
                .all = computes_bad_steps_again(config)
                           ? std::vector<comm::Group*>{&grid.data_parallel(), &grid.tp(), &grid.pp()}
                           : std::vector<comm::Group*>()},
               arena),
      updates_beside_forward(config.optimizer.state_memory == deck::StateMemory::host),
      seed_(static_cast<std::uint64_t>(config.run.seed)),
      shard_(sequence_layout(config)[grid.cp_rank()]),
      sequences_(deck::sequences_at_once(config)) {}

template <class T>
void TrainingState<T>::initialise(std::int64_t seed) {
  const nn::ParameterBuffers<T>& p = model.parameters();
  p.for_each_stored([&]<class U>(const nn::BufferLayout& layout, const Vector<U>& values) {
    model::initialise<U>(model.table(), seed, values, layout);
  });
  average.begin(model.table(), seed);
}

// The optimizer's update of a source, and then that of the average.
template <class T>
class TrainingState<T>::Rest final : public model::RestOfUpdate {
 public:
  Rest(TrainingState& state, Device& device) : state_(state), device_(device) {}

  void begin() { queued_ = model::no_unit; }
  void queue(index_t source) override {
    if (source <= queued_) return;
    const Region region(device_.timers(), "optimizer");
    queued_ = source;
    state_.optimizer->continue_update(device_, source);
    state_.average.continue_update(device_, source);
  }
  void finish() override {
    queue(optim::all_sources);
    state_.optimizer->finish_update(device_);
    state_.average.finish_update(device_);
  }

 private:
  TrainingState& state_;
  Device& device_;
  index_t queued_ = model::no_unit;
};

template <class T>
void TrainingState<T>::queue_update(Device& device, double learning_rate) {
  const nn::ParameterBuffers<T>& p = model.parameters();
  const optim::UpdatedWeights<M> weights{p.master, model.compute_copy()};
  optimizer->update(device, weights, p.gradient, learning_rate, decision.scalars());
  if (weight_rule) {
    optimizer->continue_update(device, optim::all_sources);
    weight_rule->apply(device, weights, decision.scalars());
  }
  average.update(device, p.master, decision.scalars());
  if (!updates_beside_forward) return;
  if (!rest_) rest_ = std::make_unique<Rest>(*this, device);
  static_cast<Rest&>(*rest_).begin();
}

template <class T>
void TrainingState<T>::finish_update(Device& device) {
  model.finish_weights();
  if (!rest_) return;
  rest_->finish();
  device.fence();
}

template <class T>
void TrainingState<T>::begin_step() {
  begins_with_backward_ = rest_ != nullptr;
  if (!begins_with_backward_) reducers.begin_step(micro_batches());
}

template <class T>
void TrainingState<T>::begin_backward() {
  if (!std::exchange(begins_with_backward_, false)) return;
  rest_->queue(optim::all_sources);
  reducers.begin_step(micro_batches());
}

template <class T>
std::optional<optim::Moment<master_t<T>>> TrainingState<T>::weights_to_use() const {
  const std::vector<optim::Moment<M>> all = optimizer->moments();
  const auto found = std::ranges::find_if(all, [](const optim::Moment<M>& moment) { return moment.are_weights; });
  if (found == all.end() || optimizer->steps() == 0) return std::nullopt;
  return *found;
}

template <class T>
void TrainingState<T>::load_weights(Device& device, optim::WeightsFor use) {
  if (!weights_to_use()) return;
  finish_update(device);
  optimizer->load_weights(device, model.parameters().master, use);
  model.refresh_compute_weights();
}

template <class T>
nn::Packing TrainingState<T>::packing_of(index_t micro_batch) const {
  const auto i = static_cast<std::size_t>(micro_batch);
  const std::size_t positions = starts_on_host_.size() / static_cast<std::size_t>(max_micro_batches());
  return {.document_starts = part(document_starts, micro_batch),
          .tokens = part(sequence_tokens, micro_batch),
          .step_tokens = step_tokens_,
          .documents = i < documents_.size() ? documents_[i] : 0,
          .samples = samples_.from(micro_batch * sequences_),
          .starts_on_host = starts_on_host_.subspan(i * positions, positions)};
}

template <class T>
std::vector<optim::Moment<master_t<T>>> TrainingState<T>::moments() const {
  std::vector<optim::Moment<M>> all = optimizer->moments();
  std::ranges::move(average.states(), std::back_inserter(all));
  return all;
}

NANOTRON_INSTANTIATE_CLASS(TrainingState)

}  // namespace nanotron::trainer
