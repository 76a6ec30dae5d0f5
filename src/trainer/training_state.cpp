#include "nanotron/trainer/training_state.hpp"

namespace nanotron::trainer {
namespace {

model::TransformerSetup setup_of(const deck::Config& config, const GridPlace& place, comm::Group& cp) {
  return {.model = config.model,
          .recompute = config.parallel.recompute,
          .purpose = model::Purpose::training,
          .sequences = config.data.micro_batch_size,
          .length = config.data.sequence_length,
          .key_length = config.data.sequence_length,
          .tp_mode = config.parallel.tp_mode,
          .tp_size = place.shape.tp,
          .tp_rank = place.at.tp,
          .cp_mode = config.parallel.cp_mode,
          .cp_size = place.shape.cp,
          .cp_rank = place.at.cp,
          .cp = &cp,
          .document_mask = config.data.document_mask};
}

index_t tokens_of_rank(const deck::Config& config, const GridPlace& place) {
  return config.data.global_batch_size / place.shape.dp * sequence_layout(config)[place.at.cp].length();
}

index_t documents_of_rank(const deck::Config& config, const GridPlace& place) {
  if (config.data.document_mask == deck::DocumentMask::none) return 0;
  return config.data.global_batch_size / place.shape.dp * config.data.sequence_length;
}

}  // namespace

template <class T>
TrainingState<T>::TrainingState(const deck::Config& config, const GridPlace& place, const ModelGroups& groups,
                                Device& device, Arena& arena)
    : model(setup_of(config, place, groups.cp), groups.tp, device, arena),
      optimizer(config.optimizer, model::decay_ranges(model.table()), model.table().size, arena),
      inputs(arena.take<std::int32_t>(MemoryKind::workspace, tokens_of_rank(config, place))),
      targets(arena.take<std::int32_t>(MemoryKind::workspace, tokens_of_rank(config, place))),
      loss_rows(arena.take<double>(MemoryKind::workspace, tokens_of_rank(config, place))),
      document_starts(arena.take<std::int32_t>(MemoryKind::workspace, documents_of_rank(config, place))) {}

MemoryPlan plan_memory(const deck::Config& config, const GridPlace& place, comm::Group& any_group) {
  return with_scalar_type(config.precision.compute, [&]<class T>(std::type_identity<T>) {
    Timers timers;
    Device device(timers);
    Arena arena = Arena::planning();
    const TrainingState<T> state(config, place, {any_group, any_group}, device, arena);
    return arena.plan();
  });
}

template struct TrainingState<double>;
template struct TrainingState<float>;
template struct TrainingState<bf16>;

}  // namespace nanotron::trainer
