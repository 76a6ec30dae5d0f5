#include "nanotron/trainer/loop/trainer.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "nanotron/base/error.hpp"
#include "nanotron/base/flight_recorder.hpp"
#include "nanotron/base/types.hpp"
#include "nanotron/kernels/elementwise/elementwise.hpp"
#include "nanotron/trainer/state/forward_backward.hpp"

namespace nanotron::trainer {
namespace {

int nodes_of(const comm::ProcessGrid& grid) { return std::max(1, grid.hosts().hosts()); }

}  // namespace

template <class T>
Trainer<T>::Trainer(const deck::Config& config, const Provenance& provenance, comm::ProcessGrid& grid, Device& device,
                    Arena& arena, Loaders& loaders, Log& log, io::NeighbourCopies* copies)
    : config_(config),
      grid_(grid),
      device_(device),
      loaders_(loaders),
      log_(log),
      state_(config, grid, device, arena),
      schedule_(make_forward_backward<T>(config, grid, device, state_)),
      statistics_(make_statistics_monitor(config, grid, device, state_)),
      faults_(config, grid, device, state_, log),
      checkpoint_times_(config.checkpoint, nodes_of(grid), log),
      learning_rate_(config.schedule, config.optimizer.learning_rate, config.run.steps),
      checkpointing_(config, provenance, loaders.tokenizer, loaders.data, grid, device, state_, copies, log),
      save_request_(config.run.output_dir, log),
      counters_{.seed = config.run.seed},
      end_(config.run.steps),
      tokens_(state_.inputs, state_.targets, state_.document_starts, state_.sequence_tokens, state_.later.inputs,
              state_.later.targets),
      references_(config, grid, device, state_, loaders.training, log) {
  state_.initialise(config.run.seed);
  state_.model.refresh_compute_weights();
  schedule_->compute_once();  // libraries load code now, not while other ranks wait in the first step
  if (!loaders_.validation.empty() || state_.pairs.exist()) schedule_->compute_once_forward();
  statistics_->start(0);
  state_.reducers.reset();
}

template <class T>
void Trainer<T>::resume(std::optional<io::CheckpointReader> checkpoint) {
  const NotedRegion region("resume");
  faults_.begin_resume();
  state_.finish_update(device_);
  counters_ = checkpointing_.restore(std::move(checkpoint));
  state_.optimizer->take_weights(device_, state_.model.parameters().master);
  state_.model.refresh_compute_weights();
  references_.prepare(checkpointing_.start_of_weights(), *schedule_, tokens_);
  if (state_.pairs.exist()) statistics_->start(0);  // forward passes have counted
  faults_.end_resume(counters_.step, counters_.recent_norms);
}

template <class T>
TrainingState<T>& Trainer<T>::state() {
  state_.finish_update(device_);
  return state_;
}

template <class T>
SavedCheckpoint Trainer<T>::save() {
  faults_.require_equal_replicas(counters_.step);
  const Region region(device_.timers(), "checkpoint");
  return checkpointing_.save(counters_);
}

template <class T>
void Trainer<T>::record_saved(Progress& progress, const std::optional<SavedCheckpoint>& saved) {
  if (!saved) return;
  checkpoint_times_.record(*saved);
  if (saved->waited == saved->taken || save_seconds_ == 0.0) save_seconds_ = saved->taken;  // as the last one will be
  progress.record_checkpoint(*saved);
  save_request_.saved(saved->step);
}

template <class T>
void Trainer<T>::poll_async_checkpoint(Progress& progress) {
  const StartClock::Within checkpoint(progress.clock(), StartClock::Kind::checkpoint);
  record_saved(progress, checkpointing_.advance());
}

template <class T>
void Trainer<T>::finish_writing(Progress& progress) {
  const StartClock::Within checkpoint(progress.clock(), StartClock::Kind::checkpoint);
  record_saved(progress, checkpointing_.finish());
}

// In the middle of a run it may wait for the disk while the next steps run.
template <class T>
void Trainer<T>::save_now(Progress& progress, StopReason reason) {
  const StartClock::Within checkpoint(progress.clock(), StartClock::Kind::checkpoint);
  checkpoint_times_.begin();
  progress.flush();
  finish_writing(progress);
  progress.clock().begin_checkpoint(counters_.step);
  loaders_.watch.check(grid_.world().mpi(), config_.data.on_change, log_);
  const double begin = wall_seconds();
  faults_.require_equal_replicas(counters_.step);
  checkpoint_times_.add_cost(wall_seconds() - begin);
  const Region region(device_.timers(), "checkpoint");
  if (!config_.checkpoint.asynchronous || reason != StopReason::none || counters_.step == end_)
    return record_saved(progress, checkpointing_.save(counters_));
  checkpointing_.start(counters_);
}

template <class T>
void Trainer<T>::copy_now(Progress& progress) {
  const StartClock::Within checkpoint(progress.clock(), StartClock::Kind::checkpoint);
  progress.flush();  // a start that resumes from the copies has the rows of all earlier steps
  faults_.require_equal_replicas(counters_.step);
  const Region region(device_.timers(), "checkpoint");
  const double begin = wall_seconds();
  const auto where = checkpointing_.copy(counters_);
  copy_seconds_ = wall_seconds() - begin;
  if (where) progress.record_copy({counters_.step, copy_seconds_, copy_seconds_}, *where);
}

// Loads all micro-batches of a step onto the device.
template <class T>
void Trainer<T>::load(data::BatchLoader& loader, index_t first_sample) {
  const Region region(device_.timers(), "load tokens");
  loaded_ = tokens_.load(device_, loader, first_sample);
  loaded_.targets = comm::sum(grid_.data_parallel(), loaded_.targets);
  loaded_.loss_terms = state_.pairs.exist() ? loaded_.samples : loaded_.targets;
  loaded_.sequences = loader.numbers_of(first_sample);
  references_.load(first_sample);
  state_.set_loaded(loaded_);
}

// The next step's, while a GPU computes what is queued for this one. A validation in between would displace it.
template <class T>
void Trainer<T>::read_ahead() {
  if (counters_.step + 1 == end_ || validation_is_due(counters_.step + 1)) return;
  const Region region(device_.timers(), "load tokens");
  tokens_.read_ahead(loaders_.training, counters_.sample_cursor + loaded_.samples);
}

template <class T>
void Trainer<T>::queue_update(double learning_rate) {
  const Region optimizer(device_.timers(), "optimizer");
  state_.queue_update(device_, learning_rate);
  state_.refresh_weights();
}

template <class T>
void Trainer<T>::read_result(StepResult& r) {
  const kernels::UpdateScalars& decided = state_.decision.read(device_);
  r.loss = decided.loss, r.grad_norm = decided.norm, r.updated = decided.updates;
  statistics_->collect(static_cast<double>(loaded_.loss_terms), r.statistics);
}

// Load a global batch; forward and backward of its micro-batches; reduce, clip, update. All is queued before the host
// waits for the device, in read_result. A bad step is computed twice: the second time nothing is updated.
template <class T>
StepResult Trainer<T>::train_step() {
  const Region region(device_.timers(), "step");
  load(loaders_.training, counters_.sample_cursor);
  StepResult r;
  r.samples = loaded_.samples;
  r.step = counters_.step + 1;
  r.first_sample = r.left_out_from = counters_.sample_cursor;
  r.learning_rate = learning_rate_(counters_.step);
  do {
    state_.forget_gathered_weights();
    faults_.before_forward();
    state_.begin_step();
    schedule_->forward_backward(loaded_.loss_scale());
    read_ahead();
    state_.reducers.finish();
    schedule_->all_reduce_tied_gradients();
    statistics_->start(static_cast<index_t>(state_.loaded_loss_rows().size()));
    state_.decision.decide(
        device_, state_.loaded_loss_rows(), state_.model.parameters().gradient,
        {static_cast<double>(loaded_.loss_terms), config_.optimizer.clip_grad_norm, faults_.largest_norm()});
    faults_.before_update();
    checkpointing_.finish_copy();
    queue_update(r.learning_rate);
    r.token_hash = comm::sum(grid_.data_parallel(), loaded_.token_hash);
    read_result(r);
  } while (faults_.computes_again(r, loaded_.targets));

  if (r.updated) {
    count_update(r);
    update_curvature();
  } else {
    handle_bad_step(r);
  }
  if (r.rolled_back) return r;
  ++counters_.step;
  counters_.sample_cursor += r.samples;
  counters_.tokens_seen += loaded_.targets;
  faults_.after_update(counters_.step);
  return r;
}

// A second gradient of the batch, at the new weights and with labels drawn from the model. Its statistics are dropped.
template <class T>
void Trainer<T>::update_curvature() {
  if (!state_.optimizer->wants_curvature()) return;
  const nn::ParameterBuffers<T>& p = state_.model.parameters();
  state_.forget_gathered_weights();
  state_.draws_targets = true;
  state_.begin_step();
  schedule_->forward_backward(loaded_.loss_scale());
  state_.reducers.finish();
  schedule_->all_reduce_tied_gradients();
  state_.draws_targets = false;
  const auto targets = static_cast<double>(loaded_.targets);
  state_.decision.decide(device_, state_.loaded_loss_rows(), p.gradient, {.targets = targets});
  const Region optimizer(device_.timers(), "optimizer");
  state_.optimizer->update_curvature(device_, {p.master, state_.model.compute_copy()}, p.gradient, targets,
                                     state_.decision.scalars());
  statistics_->start(0);
}

template <class T>
void Trainer<T>::count_update(const StepResult& r) {
  checkpointing_.mark_known_good();
  state_.optimizer->set_steps(state_.optimizer->steps() + 1);
  skipped_in_a_row_ = 0;
  faults_.accept(r.grad_norm);
  counters_.recent_norms = faults_.norms();
  statistics_->after_update();
}

template <class T>
std::vector<double> Trainer<T>::validate() {
  const Region region(device_.timers(), "validation");
  std::vector<double> losses;
  state_.load_weights(device_, optim::WeightsFor::use);
  for (data::BatchLoader& loader : loaders_.validation) {
    const MeanLoss mean =
        mean_loss(device_, grid_, state_, *schedule_, tokens_, loader, config_.data.global_batch_size);
    if (mean.targets == 0)
      log_.warn("validation set {}: no target of its samples counts in the loss", losses.size() + 1);
    else if (!std::isfinite(mean.loss))
      log_.warn("step {}: the loss of validation set {} is not finite", counters_.step, losses.size() + 1);
    losses.push_back(mean.loss);
  }
  state_.load_weights(device_, optim::WeightsFor::gradients);
  return losses;
}

template <class T>
bool Trainer<T>::validation_is_due(std::int64_t step) const {
  const std::int64_t every = config_.data.validation_every;
  return !loaders_.validation.empty() && ((every > 0 && step % every == 0) || step == config_.run.steps);
}

// As long as the last one. Before the first: a forward takes about 1/3 of a step. The factor 1.5 is a margin, since the
// estimate decides whether the run stops.
template <class T>
double Trainer<T>::validation_estimate(const Progress& progress) const {
  if (validation_seconds_ > 0.0) return validation_seconds_;
  double batches = 0.0;
  for (const data::BatchLoader& loader : loaders_.validation)
    batches += static_cast<double>(loader.number_of_batches());
  return batches * progress.full_seconds() / 3.0 * 1.5;
}

template <class T>
void Trainer<T>::record_step(Progress& progress, const StepStart& start, const StepResult& result) {
  const double seconds = wall_seconds() - start.begin;
  flight_recorder().step_done(result.rolled_back ? 0 : static_cast<std::int64_t>(1e9 * seconds));
  const std::optional<SavedCheckpoint> saved = std::exchange(finished_, {});
  if (saved && saved->step <= counters_.step) record_saved(progress, saved);  // a later one is moved aside
  if (!result.updated) progress.record_bad_step(counters_, result);
  if (result.rolled_back) {
    save_request_.rolled_back_to(counters_.step);
    return checkpoint_times_.drop();
  }
  progress.record(counters_, seconds, result);
  const double waited = checkpointing_.seconds_waited() - start.waited;
  checkpoint_times_.record_step(seconds - waited, result.samples, start.beside_checkpoint);
  faults_.check_stragglers(counters_.step);
}

template <class T>
void Trainer<T>::record_validation(Progress& progress) {
  const double begin = wall_seconds();
  loaders_.watch.check(grid_.world().mpi(), config_.data.on_change, log_);
  progress.record_validation(counters_.step, validate());
  validation_seconds_ = wall_seconds() - begin;
}

// Seconds until the run could stop with all in a checkpoint, if it does the next step.
template <class T>
double Trainer<T>::seconds_to_safety(const Progress& progress) const {
  const bool validates = validation_is_due(counters_.step) || validation_is_due(counters_.step + 1);
  const double under_way = checkpointing_.seconds_under_way();  // has to end before the last one begins
  return progress.recent_seconds() + save_seconds_ + copy_seconds_ +
         (under_way > 0.0 ? std::max(save_seconds_, under_way) : 0.0) +
         (validates ? validation_estimate(progress) : 0.0);
}

// The checkpoint and the copies on other hosts that are due.
template <class T>
void Trainer<T>::save_and_copy(Progress& progress, const Seen& seen) {
  const auto& [reason, is_requested] = seen;
  const std::int64_t copy_every = config_.checkpoint.neighbour_every_steps;
  const bool copies =
      copy_every > 0 && counters_.step % copy_every == 0 && counters_.step < end_ && reason == StopReason::none;
  const bool goes_back = config_.run.on_bad_step == deck::OnBadStep::roll_back;
  if (copies && !goes_back) copy_now(progress);
  const bool due = checkpoint_times_.is_due(grid_.world(), counters_.step);
  const bool finished = counters_.step == config_.run.steps;
  const bool ends = counters_.step == end_ || reason != StopReason::none;
  if (is_requested && reason == StopReason::none)
    log_.info("step {:>7}/{}  a checkpoint is asked for: file SAVE or SIGURG", counters_.step, config_.run.steps);
  if (due || is_requested || (finished ? config_.checkpoint.at_end : ends)) {
    save_request_.answer_with(counters_.step);
    save_now(progress, reason);
    saved_at_ = counters_.step;
  }
  // A start that resumes from copies rolls back to the same checkpoints as this one: all are on the disk.
  if (copies && goes_back && !checkpointing_.is_writing()) copy_now(progress);
}

template <class T>
StopReason Trainer<T>::run(StopConditions& stop, Progress& progress, std::int64_t until) {
  end_ = until > 0 ? until : config_.run.steps;
  const StartClock::Within training(progress.clock(), StartClock::Kind::training);
  saved_at_ = counters_.step;
  save_seconds_ = progress.checkpoint_seconds();
  StopReason reason = StopReason::none;
  while (counters_.step < end_ && reason == StopReason::none) {
    const StepStart start{wall_seconds(), checkpointing_.seconds_waited(), checkpointing_.seconds_under_way() > 0.0};
    flight_recorder().begin_step(counters_.step + 1);
    const StepResult result = train_step();
    record_step(progress, start, result);
    if (result.rolled_back) continue;
    poll_async_checkpoint(progress);
    const bool finished = counters_.step == config_.run.steps;
    const bool validates = validation_is_due(counters_.step);
    const double validation = validation_estimate(progress);
    const Seen seen = stop.check(grid_.world(), progress.steps(), seconds_to_safety(progress),
                                 save_request_.is_open(grid_.world().rank() == 0));
    reason = seen.stop;
    const bool in_haste = reason == StopReason::signal || reason == StopReason::wall_time;
    if (validates && !finished && !in_haste) record_validation(progress);
    if (validates && !finished && in_haste) {
      log_.info("step {:>7}/{}  validation skipped, it takes about {:.1f} s: {}", counters_.step, config_.run.steps,
                validation, describe(reason));
    }
    save_and_copy(progress, seen);
    if (validates && finished) record_validation(progress);  // in haste too: no later run would validate this step
  }
  finish_writing(progress);
  progress.flush();
  if (saved_at_ != counters_.step) log_.warn("steps {} to {} are in no checkpoint", saved_at_ + 1, counters_.step);
  return counters_.step < config_.run.steps ? reason : StopReason::none;
}

NANOTRON_INSTANTIATE_CLASS(Trainer)

}  // namespace nanotron::trainer
