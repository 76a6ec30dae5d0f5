#include "nanotron/trainer/checkpointing.hpp"

#include "nanotron/base/error.hpp"

namespace nanotron::trainer {
namespace {

// Along the cut dimension: [begin, begin + count) of the logical tensor.
Range range_of(const nn::ParameterSpec& spec, Part part) {
  return part == Part::held ? spec.local : part == Part::owned ? spec.owned : Range{0, 0};
}

template <class M>
io::StateTensor state_tensor(const nn::ParameterSpec& spec, M* data, Part part) {
  const Range range = range_of(spec, part);
  const bool by_columns = spec.cut == nn::Cut::columns;
  const index_t skip = range.size() == 0 ? 0 : range.begin - spec.local.begin;
  io::StateTensor t;
  t.name = spec.name;
  t.data = data + spec.offset + (by_columns ? skip : skip * spec.columns);
  if (spec.is_stacked) {
    t.global_shape.push_back(spec.layers);
    t.offset.push_back(0);
    t.extent.push_back(spec.layers);
    t.stride.push_back(spec.layer_stride);
  }
  t.global_shape.push_back(spec.rows);
  t.offset.push_back(by_columns ? 0 : range.begin);
  t.extent.push_back(by_columns && range.size() > 0 ? spec.rows : by_columns ? 0 : range.size());
  t.stride.push_back(spec.local_columns());
  if (!spec.is_vector) {
    t.global_shape.push_back(spec.columns);
    t.offset.push_back(by_columns ? range.begin : 0);
    t.extent.push_back(by_columns ? range.size() : spec.columns);
    t.stride.push_back(1);
  }
  return t;
}

}  // namespace

template <class M>
std::vector<io::StateTensor> state_tensors(const model::ParameterTable& table, M* data, Part part) {
  std::vector<io::StateTensor> tensors;
  for (const nn::ParameterSpec& spec : table.specs) tensors.push_back(state_tensor(spec, data, part));
  return tensors;
}

template <class T>
Checkpointing<T>::Checkpointing(const deck::Config& config, const Provenance& provenance,
                                comm::ProcessGrid& grid, TrainingState<T>& state, Log& log)
    : config_(config),
      provenance_(provenance),
      grid_(grid),
      state_(state),
      log_(log),
      writer_(grid.world().mpi(), config.checkpoint.directory, config.checkpoint.keep_last, log),
      master_(Kokkos::create_mirror_view(state.model.parameters().master)),
      exp_avg_(Kokkos::create_mirror_view(state.optimizer.exp_avg())),
      exp_avg_sq_(Kokkos::create_mirror_view(state.optimizer.exp_avg_sq())) {}

template <class T>
io::CheckpointState Checkpointing<T>::restore() {
  auto reader = io::CheckpointReader::find(grid_.world().mpi(), config_.checkpoint.directory,
                                           config_.checkpoint.resume, log_);
  if (!reader) {
    writer_.begin_anew();
    return {.seed = config_.run.seed};
  }
  const io::CheckpointInfo& info = reader->info();
  reader->require_model(config_.model);
  read_into(*reader);
  writer_.continue_from(reader->folder(), info.state.step);  // moves others aside: only after all was read

  log_.info("resumed from {} (step {}, {} tokens seen{})", reader->folder().string(), info.state.step,
            info.state.tokens_seen, info.has_optimizer ? "" : "; no optimizer state in it: moments start at zero");
  if (info.state.seed != config_.run.seed) {
    log_.warn("run%seed is {} here and was {}: the order of the samples changes from here on",
              config_.run.seed, info.state.seed);
  }
  io::CheckpointState counters = info.state;
  counters.seed = config_.run.seed;
  return counters;
}

template <class T>
void Checkpointing<T>::read_into(io::CheckpointReader& reader) {
  const model::ParameterTable& table = state_.model.table();
  const bool with_moments = reader.info().has_optimizer;
  reader.read(state_tensors<M>(table, master_.data(), Part::held),
              state_tensors<M>(table, exp_avg_.data(), Part::held),
              state_tensors<M>(table, exp_avg_sq_.data(), Part::held), scalar_type_of<M>);
  Kokkos::deep_copy(state_.model.parameters().master, master_);
  if (with_moments) {
    Kokkos::deep_copy(state_.optimizer.exp_avg(), exp_avg_);
    Kokkos::deep_copy(state_.optimizer.exp_avg_sq(), exp_avg_sq_);
  }
  state_.optimizer.set_steps(with_moments ? reader.info().state.adam_step : 0);
}

template <class T>
double Checkpointing<T>::save(io::CheckpointState counters) {
  const double begin = wall_seconds();
  Kokkos::deep_copy(master_, state_.model.parameters().master);
  Kokkos::deep_copy(exp_avg_, state_.optimizer.exp_avg());
  Kokkos::deep_copy(exp_avg_sq_, state_.optimizer.exp_avg_sq());

  const model::ParameterTable& table = state_.model.table();
  const Part part = grid_.replicas().rank() == 0 ? Part::owned : Part::none;
  const auto parameters = state_tensors<M>(table, master_.data(), part);
  const auto exp_avg = state_tensors<M>(table, exp_avg_.data(), part);
  const auto exp_avg_sq = state_tensors<M>(table, exp_avg_sq_.data(), part);
  counters.adam_step = state_.optimizer.steps();
  writer_.write({.parameters = parameters,
                 .exp_avg = exp_avg,
                 .exp_avg_sq = exp_avg_sq,
                 .master = scalar_type_of<M>,
                 .state = counters,
                 .model = config_.model,
                 .deck = deck::canonical_deck(config_),
                 .provenance = provenance_});
  return wall_seconds() - begin;
}

template std::vector<io::StateTensor> state_tensors(const model::ParameterTable&, double*, Part);
template std::vector<io::StateTensor> state_tensors(const model::ParameterTable&, float*, Part);
template class Checkpointing<double>;
template class Checkpointing<float>;
template class Checkpointing<bf16>;

}  // namespace nanotron::trainer
