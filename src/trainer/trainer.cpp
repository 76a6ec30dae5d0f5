#include "nanotron/trainer/trainer.hpp"

#include <cmath>

#include "nanotron/base/error.hpp"
#include "nanotron/kernels/reduction/content_hash.hpp"
#include "nanotron/kernels/elementwise/elementwise.hpp"
#include "nanotron/kernels/reduction/exact_sum.hpp"

namespace nanotron::trainer {
namespace {

using HostTokens =
    Kokkos::View<const std::int32_t*, Kokkos::HostSpace, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;

// After numbers that are not finite: the newest checkpoint may already hold weights that diverged.
std::string where_to_resume(const std::filesystem::path& newest_proven) {
  if (newest_proven.empty()) return "no checkpoint is known to be good: --set checkpoint.resume=none begins anew";
  return fmt::format("then go on from the newest checkpoint whose next step was finite: --set checkpoint.resume='{}'",
                     newest_proven.string());
}

// Experts that lie over several ranks are answered for by other groups than the rest.
template <class T>
std::vector<optim::NormPart> norm_parts(const TrainingState<T>& state, comm::ProcessGrid& grid) {
  const model::ParameterTable& table = state.model.table();
  const auto answered = [&](const Range& flat) {
    return optim::answered_ranges(table, state.model.parameters().places, state.sharding, flat);
  };
  if (grid.shape().ep == 1) return {{answered({0, table.size}), {&grid.shards()}}};
  return {{answered(table.dense_section().flat), {&grid.shards()}},
          {answered(table.expert_section().flat), {&grid.expert_shards(), &grid.ep()}}};
}

}  // namespace

template <class T>
Trainer<T>::Trainer(const deck::Config& config, const Provenance& provenance, comm::ProcessGrid& grid,
                    Device& device, Arena& arena, Loaders& loaders, Log& log)
    : config_(config),
      grid_(grid),
      device_(device),
      loaders_(loaders),
      log_(log),
      state_(config, {grid.shape(), grid.coordinate()}, ModelGroups::of(grid), device, arena),
      norm_(norm_parts(state_, grid)),
      gradients_(parallel::make_gradient_sum<T>(state_.sharding, state_.model, state_.sums,
                                                {grid.replicas(), grid.shards(), grid.copies()},
                                                {grid.expert_replicas(), grid.expert_shards(), grid.expert_copies()},
                                                device,
                                                {.megabytes = config.parallel.bucket_mb,
                                                 .overlap = config.parallel.overlap,
                                                 .micro_batches = state_.micro_batches(),
                                                 .micro_batches_of_shard = neighbouring_sequences(config),
                                                 .context = static_cast<int>(config.parallel.cp),
                                                 .compression = config.parallel.compression,
                                                 .rule = config.parallel.gradient_sum})),
      passes_(make_passes<T>({config, grid, device, state_, *gradients_})),
      routers_(make_router_monitor(config, grid, device, state_.model.router_sums())),
      replicas_(grid.replicas(), "data-parallel", grid.world(), config.run.check_replicas_every),
      copies_(grid.copies(), "data-parallel", grid.world(), config.run.check_replicas_every),
      expert_replicas_(grid.expert_replicas(), "data-parallel", grid.world(), config.run.check_replicas_every),
      expert_copies_(grid.expert_copies(), "data-parallel", grid.world(), config.run.check_replicas_every),
      tensor_copies_(grid.tp(), "tensor-parallel", grid.world(), config.run.check_replicas_every),
      learning_rate_(config.schedule, config.optimizer.learning_rate, config.run.steps),
      checkpointing_(config, provenance, loaders.tokenizer, grid, state_, log),
      counters_{.seed = config.run.seed},
      host_inputs_(state_.inputs.size()),
      host_targets_(state_.targets.size()),
      host_document_starts_(state_.document_starts.size()) {
  const nn::ParameterBuffers<T>& p = state_.model.parameters();
  model::initialise<M>(state_.model.table(), config.run.seed, p.master, p.places.master);
  state_.model.refresh_compute_weights();
}

template <class T>
void Trainer<T>::resume() {
  counters_ = checkpointing_.restore();
  state_.model.refresh_compute_weights();
  compare_replicas();
}

template <class T>
TrainingState<T>& Trainer<T>::state() {
  state_.model.settle_weights();
  return state_;
}

// Copies of a piece hold the same weights and moments, all replicas the same weights for their products.
template <class T>
void Trainer<T>::compare_section(const model::Section& section, parallel::ReplicaCheck& replicas,
                                 parallel::ReplicaCheck& copies, int shards) {
  const nn::ParameterBuffers<T>& p = state_.model.parameters();
  std::uint64_t hash = 0;
  const auto add = [&]<class U>(const nn::Placement& place, const Range& range, const Vector<U>& values) {
    for (const nn::Placement::Part& part : place.within(range)) {
      hash = 3 * hash + kernels::content_hash<U>(device_, Vector<const U>(values.data() + part.at, part.range.size()));
    }
  };
  if (copies.has_replicas()) {
    add(p.places.master.common(p.places.moments), section.flat, p.master);
    for (const optim::Moment<M>& moment : state_.optimizer->moments()) add(moment.place, section.flat, moment.values);
    copies.require_equal(hash, counters_.step);
  }
  if (shards == 1) return;
  hash = 0;
  add(p.places.compute, section.flat, p.compute);
  add(p.places.master, section.vectors, p.master);  // held by all
  for (const optim::Moment<M>& moment : state_.optimizer->moments()) add(moment.place, section.vectors, moment.values);
  replicas.require_equal(hash, counters_.step);
}

// Tensors that every rank of a tensor-parallel group holds whole: norms, and routers where no replica has a piece alone.
template <class T>
void Trainer<T>::compare_tensor_copies() {
  const nn::ParameterBuffers<T>& p = state_.model.parameters();
  std::uint64_t hash = 0;
  for (const nn::ParameterSpec& spec : state_.model.table().specs) {
    if (spec.cut != nn::Cut::none || (state_.sharding.size > 1 && !spec.is_vector)) continue;
    for (index_t l = 0; l < spec.local_layers(); ++l) {
      const Vector<const M> values(p.master.data() + p.places.master.at(spec.offset_of(l)), spec.local_size());
      hash = 3 * hash + kernels::content_hash<M>(device_, values);
    }
  }
  tensor_copies_.require_equal(hash, counters_.step);
}

template <class T>
void Trainer<T>::compare_replicas() {
  const Region region(device_.timers(), "compare replicas");
  const model::ParameterTable& table = state().model.table();
  if (tensor_copies_.has_replicas()) compare_tensor_copies();
  if (!replicas_.has_replicas()) return;
  if (grid_.shape().ep == 1) {
    return compare_section({.flat = {0, table.size}, .vectors = table.vectors, .units = {}}, replicas_, copies_,
                           state_.sharding.size);
  }
  compare_section(table.dense_section(), replicas_, copies_, state_.sharding.size);
  compare_section(table.expert_section(), expert_replicas_, expert_copies_, state_.sharding.experts.size);
}

template <class T>
double Trainer<T>::save() {
  compare_replicas();
  return checkpointing_.save(counters_);
}

// All micro-batches of a step.
template <class T>
std::uint64_t Trainer<T>::load(data::BatchLoader& loader, index_t first_sample) {
  const Region region(device_.timers(), "load tokens");
  const index_t tokens = state_.model.tokens();
  std::uint64_t hash = 0;
  for (index_t m = 0; m < state_.micro_batches(); ++m) {
    hash += loader.load(first_sample, m, host_inputs_.data() + m * tokens, host_targets_.data() + m * tokens);
  }
  loader.load_documents(first_sample, host_document_starts_);
  targets_ = loader.targets(first_sample);
  Kokkos::deep_copy(device_.exec(), state_.inputs, HostTokens(host_inputs_.data(), host_inputs_.size()));
  Kokkos::deep_copy(device_.exec(), state_.targets, HostTokens(host_targets_.data(), host_targets_.size()));
  Kokkos::deep_copy(device_.exec(), state_.document_starts,
                    HostTokens(host_document_starts_.data(), host_document_starts_.size()));
  device_.fence();  // the host buffers are filled again
  return hash;
}

// Over the global batch that is loaded: the same on every rank, in any order of ranks and samples.
template <class T>
double Trainer<T>::loss_sum() {
  const auto over_ranks = [&](const auto& combine, auto value) {
    return combine(grid_.pp(), combine(grid_.replicas(), value));
  };
  const auto larger = [](comm::Group& group, double x) { return comm::max(group, x); };
  const auto add = [](comm::Group& group, std::int64_t x) { return comm::sum(group, x); };
  const double largest = over_ranks(larger, kernels::largest_magnitude<double>(device_, state_.loss_rows));
  if (!std::isfinite(largest)) return largest;
  const kernels::Quanta quanta(largest);
  kernels::ExactParts parts = kernels::sum(device_, state_.loss_rows, quanta);
  parts = {over_ranks(add, parts.coarse), over_ranks(add, parts.fine)};
  return kernels::value(parts, quanta);
}

template <class T>
void Trainer<T>::update(StepResult& r) {
  const nn::ParameterBuffers<T>& p = state_.model.parameters();
  r.grad_norm = optim::global_norm<M>(device_, grid_.model(), norm_, p.gradient);
  r.learning_rate = learning_rate_(counters_.step);
  const double clip = optim::clip_factor(r.grad_norm, config_.optimizer.clip_grad_norm);
  const auto largest_square = static_cast<M>(clip * r.grad_norm * clip * r.grad_norm);  // Adam squares
  r.updated = std::isfinite(r.loss) && std::isfinite(largest_square);
  if (r.updated) {
    checkpointing_.proven();
    const Region region(device_.timers(), "optimizer");
    state_.optimizer->update(device_, p.master, p.gradient, r.learning_rate, clip);
    state_.model.refresh_compute_weights();
    skipped_in_a_row_ = 0;
    return;
  }
  gradients_->forget();
  if (++skipped_in_a_row_ > config_.run.max_nonfinite_steps) {
    fail(ExitCode::numerics_error,
         {.what = fmt::format("step {}: the numbers are not finite", counters_.step + 1),
          .expected = "a finite loss and gradient norm",
          .found = fmt::format("loss {}, gradient norm {}, {} in a row", r.loss, r.grad_norm, skipped_in_a_row_),
          .where = fmt::format("global samples {} to {}", counters_.sample_cursor,
                               counters_.sample_cursor + config_.data.global_batch_size - 1),
          .change = fmt::format("a lower optimizer%learning_rate, a longer schedule%warmup_steps, or "
                                "run%max_nonfinite_steps > 0 to leave such updates out; {}",
                                where_to_resume(checkpointing_.newest_proven()))});
  }
  log_.warn("step {}: loss {}, gradient norm {}: update left out", counters_.step + 1, r.loss, r.grad_norm);
}

template <class T>
StepResult Trainer<T>::train_step() {
  const Region region(device_.timers(), "step");
  StepResult result;
  result.token_hash = load(loaders_.training, counters_.sample_cursor);
  passes_->train(1.0 / static_cast<double>(targets_));
  result.loss = loss_sum() / static_cast<double>(targets_);
  result.router = routers_->collect();
  result.token_hash = comm::sum(grid_.replicas(), result.token_hash);
  update(result);

  ++counters_.step;
  counters_.sample_cursor += config_.data.global_batch_size;
  counters_.tokens_seen += targets_;
  if (replicas_.is_due(counters_.step)) compare_replicas();
  return result;
}

template <class T>
std::vector<double> Trainer<T>::validate() {
  const Region region(device_.timers(), "validation");
  std::vector<double> losses;
  for (data::BatchLoader& loader : loaders_.validation) {
    double sum = 0.0;
    index_t targets = 0;
    for (index_t b = 0; b < loader.number_of_batches(); ++b) {
      load(loader, b * config_.data.global_batch_size);
      passes_->evaluate();
      sum += loss_sum();
      targets += targets_;
    }
    losses.push_back(sum / static_cast<double>(targets));
  }
  return losses;
}

template <class T>
bool Trainer<T>::validation_is_due(std::int64_t step) const {
  const std::int64_t every = config_.data.validation_every;
  return !loaders_.validation.empty() && ((every > 0 && step % every == 0) || step == config_.run.steps);
}

// A forward takes a third of a step; half as much again, since it decides whether the run stops.
template <class T>
double Trainer<T>::validation_estimate(const Progress& progress) const {
  double batches = 0.0;
  for (const data::BatchLoader& loader : loaders_.validation) batches += static_cast<double>(loader.number_of_batches());
  return batches * progress.recent_seconds() / 3.0 * 1.5;
}

template <class T>
StopReason Trainer<T>::run(StopConditions& stop, Progress& progress) {
  const deck::CheckpointConfig& checkpoint = config_.checkpoint;
  const std::int64_t first_step = counters_.step;
  std::int64_t saved_at = first_step;
  double save_seconds = 0.0, validation_seconds = 0.0;  // 0: not measured yet
  StopReason reason = StopReason::none;
  while (counters_.step < config_.run.steps && reason == StopReason::none) {
    const double begin = wall_seconds();
    const StepResult result = train_step();
    progress.record(counters_.step, counters_.tokens_seen, wall_seconds() - begin, result);

    const bool finished = counters_.step == config_.run.steps;
    const bool validates = validation_is_due(counters_.step);
    const double validation = validation_seconds > 0.0 ? validation_seconds : validation_estimate(progress);
    const double ahead = progress.recent_seconds() + save_seconds +
                         (validates || validation_is_due(counters_.step + 1) ? validation : 0.0);
    reason = stop.check(grid_.world(), counters_.step - first_step, ahead);
    const bool in_haste = reason == StopReason::signal || reason == StopReason::wall_time;
    const auto record_validation = [&] {
      const double validation_begin = wall_seconds();
      progress.record_validation(counters_.step, validate());
      validation_seconds = wall_seconds() - validation_begin;
    };
    if (validates && !finished && !in_haste) record_validation();
    if (validates && !finished && in_haste) {
      log_.info("step {:>7}/{}  no validation, which takes about {:.1f} s: {}", counters_.step, config_.run.steps,
                validation, describe(reason));
    }
    const bool due = checkpoint.every_steps > 0 && counters_.step % checkpoint.every_steps == 0;
    if (due || (finished ? checkpoint.at_end : reason != StopReason::none)) {
      progress.flush();
      save_seconds = save();
      saved_at = counters_.step;
      log_.info("step {:>7}/{}  checkpoint written in {:.1f} s", counters_.step, config_.run.steps,
                save_seconds);
    }
    if (validates && finished) record_validation();  // in haste too: the weights are safe, and no run goes on from here
  }
  progress.flush();
  if (saved_at != counters_.step) log_.warn("steps {} to {} are in no checkpoint", saved_at + 1, counters_.step);
  return counters_.step < config_.run.steps ? reason : StopReason::none;
}

template class Trainer<double>;
template class Trainer<float>;
template class Trainer<bf16>;

}  // namespace nanotron::trainer
