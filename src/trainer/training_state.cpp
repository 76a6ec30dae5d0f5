#include "nanotron/trainer/training_state.hpp"

#include "nanotron/deck/sum_shards.hpp"
#include "nanotron/parallel/pipeline/pipeline.hpp"
#include "nanotron/parallel/pipeline/pipeline_partition.hpp"

namespace nanotron::trainer {
namespace {

model::TransformerSetup setup_of(const deck::Config& config, const GridPlace& place, const ModelGroups& groups,
                                 const model::Sharding& sharding) {
  std::vector<model::Chunk> chunks;
  index_t stream_gradients = 1;
  const deck::SumShards shards = deck::sum_shards(config);
  const bool keeps_order = config.precision.reproducible == deck::Reproducible::layout;
  const bool zero_bubble = config.parallel.pp > 1 && config.parallel.pp_schedule == deck::PpSchedule::zero_bubble;
  if (config.parallel.pp > 1) {
    const parallel::PipelineSchedule schedule = parallel::schedule_of(config);
    chunks = parallel::chunks_of_rank(parallel::stage_layers(config), schedule, place.at.pp);
    stream_gradients = parallel::gradient_buffers(schedule, place.at.pp);
  }
  return {.model = config.model,
          .recompute = config.parallel.recompute,
          .purpose = model::Purpose::training,
          .sequences = config.data.micro_batch_size,
          .length = config.data.sequence_length,
          .key_length = config.data.sequence_length,
          .chunks = std::move(chunks),
          .stream_gradients = stream_gradients,
          .backward = zero_bubble ? model::Backward::two_parts : model::Backward::whole,
          .tp_mode = config.parallel.tp_mode,
          .overlap = nn::stream_overlap(config.parallel),
          .tp_size = place.shape.tp,
          .tp_rank = place.at.tp,
          .sharding = sharding,
          .cp_mode = config.parallel.cp_mode,
          .cp_size = place.shape.cp,
          .cp_rank = place.at.cp,
          .cp = &groups.cp,
          .document_mask = config.data.document_mask,
          .tensor_shards = keeps_order ? static_cast<int>(shards.tensor) : 0,
          .stream_shards = keeps_order ? static_cast<int>(shards.stream) : 0,
          .context_shards = keeps_order ? static_cast<int>(shards.context) : 0,
          .ep_size = place.shape.ep,
          .ep_rank = comm::replica_of(place.shape, place.at) % place.shape.ep,
          .ep = &groups.ep,
          .loss_tokens = tokens_per_step(config)};
}

index_t tokens_of_rank(const deck::Config& config, const GridPlace& place) {
  return config.data.global_batch_size / place.shape.dp * sequence_layout(config)[place.at.cp].length();
}

// OrderedSum cuts units over all replicas.
int unit_pieces(const deck::Config& config) {
  const deck::ParallelConfig& p = config.parallel;
  const bool keeps_order = config.precision.reproducible == deck::Reproducible::layout;
  return static_cast<int>(keeps_order ? p.dp * p.cp : deck::shard_group_size(p));
}

index_t documents_of_rank(const deck::Config& config, const GridPlace& place) {
  if (config.data.document_mask == deck::DocumentMask::none) return 0;
  return config.data.global_batch_size / place.shape.dp * config.data.sequence_length;
}

}  // namespace

index_t neighbouring_sequences(const deck::Config& config) {
  return config.data.global_batch_size / deck::sum_shards(config).batch;
}

model::Sharding sharding_of(const deck::Config& config, const GridPlace& place, const ModelGroups& groups) {
  const auto size = static_cast<int>(deck::shard_group_size(config.parallel));
  const int replica = comm::replica_of(place.shape, place.at);
  const int experts = place.shape.expert_shards();
  const bool keeps_order = config.precision.reproducible == deck::Reproducible::layout;
  return {.stage = size > 1 ? static_cast<int>(config.parallel.zero_stage) : 0,
          .size = size,
          .rank = replica % size,
          .group = &groups.shards,
          .gradients = !keeps_order                          ? model::UnitGradients::by_stage
                       : neighbouring_sequences(config) == 1 ? model::UnitGradients::in_slots
                                                             : model::UnitGradients::apart,
          .unit_pieces = unit_pieces(config),
          .experts = {experts, replica / place.shape.ep % experts, &groups.expert_shards},
          .expert_gradients = keeps_order ? place.shape.ep / std::min(place.shape.cp, place.shape.ep) : 1};
}

model::ParameterTable parameter_table_of(const deck::Config& c, const comm::GridCoordinate& at) {
  std::vector<Range> layers;
  if (c.parallel.pp > 1) {
    const auto chunks = parallel::chunks_of_rank(parallel::stage_layers(c), parallel::schedule_of(c), at.pp);
    for (const model::Chunk& chunk : chunks) layers.push_back(chunk.layers);
  }
  return model::make_parameter_table(c.model, static_cast<int>(c.parallel.tp), at.tp, c.parallel.tp_mode, layers,
                                     unit_pieces(c),
                                     c.precision.reproducible == deck::Reproducible::layout ? static_cast<int>(c.precision.tensor_shards) : 0,
                                     {.size = static_cast<int>(c.parallel.ep),
                                      .rank = comm::replica_of(comm::shape_of(c), at) % static_cast<int>(c.parallel.ep),
                                      .shards = std::max(1, unit_pieces(c) / static_cast<int>(c.parallel.ep))});
}

template <class T>
TrainingState<T>::TrainingState(const deck::Config& config, const GridPlace& place, const ModelGroups& groups,
                                Device& device, Arena& arena)
    : sharding(sharding_of(config, place, groups)),
      model(setup_of(config, place, groups, sharding), groups.tp, device, arena),
      optimizer(optim::make_optimizer<M>(config,
                                         {.table = model.table(),
                                          .places = model.parameters().places,
                                          .sharding = sharding,
                                          .tp_size = place.shape.tp,
                                          .tp_rank = place.at.tp,
                                          .tp = &groups.tp},
                                         arena)),
      sums(config, model.table(), arena),
      inputs(arena.take<std::int32_t>(MemoryKind::workspace, tokens_of_rank(config, place))),
      targets(arena.take<std::int32_t>(MemoryKind::workspace, tokens_of_rank(config, place))),
      loss_rows(arena.take<double>(MemoryKind::workspace, tokens_of_rank(config, place))),
      document_starts(arena.take<std::int32_t>(MemoryKind::workspace, documents_of_rank(config, place))) {}

namespace {

// tell(state, arena) of the state that a rank will have.
template <class Tell>
auto of_planned_state(const deck::Config& config, const GridPlace& place, comm::Group& any_group, const Tell& tell) {
  return with_scalar_type(config.precision.compute, [&]<class T>(std::type_identity<T>) {
    Timers timers;
    Device device(timers, products_of(config));
    Arena arena = Arena::planning();
    const TrainingState<T> state(config, place, {any_group, any_group, any_group, any_group, any_group}, device, arena);
    return tell(state, arena);
  });
}

}  // namespace

MemoryPlan plan_memory(const deck::Config& config, const GridPlace& place, comm::Group& any_group) {
  return of_planned_state(config, place, any_group, [](const auto&, const Arena& arena) { return arena.plan(); });
}

optim::UpdateTraffic plan_update_traffic(const deck::Config& config, const GridPlace& place, comm::Group& any_group) {
  return of_planned_state(config, place, any_group,
                          [](const auto& state, const Arena&) { return state.optimizer->traffic(); });
}

template struct TrainingState<double>;
template struct TrainingState<float>;
template struct TrainingState<bf16>;

}  // namespace nanotron::trainer
