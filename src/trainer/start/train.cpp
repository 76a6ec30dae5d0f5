#include "nanotron/trainer/start/train.hpp"

#include <algorithm>
#include <memory>
#include <vector>

#include "nanotron/base/energy_meter.hpp"
#include "nanotron/base/error.hpp"
#include "nanotron/base/flight_recorder.hpp"
#include "nanotron/base/log.hpp"
#include "nanotron/base/process.hpp"
#include "nanotron/base/start_account.hpp"
#include "nanotron/comm/collectives.hpp"
#include "nanotron/comm/session/mpi_session.hpp"
#include "nanotron/comm/watch/watched_groups.hpp"
#include "nanotron/io/files/run_status.hpp"
#include "nanotron/tensor/device.hpp"
#include "nanotron/tensor/stream_timers.hpp"
#include "nanotron/trainer/data/training_stages.hpp"
#include "nanotron/trainer/loop/trainer.hpp"
#include "nanotron/trainer/report/run_report.hpp"
#include "nanotron/trainer/start/gemm_algorithms.hpp"
#include "nanotron/trainer/state/run_resources.hpp"
#include "steps.hpp"
#include "trainer/checkpoint/resume.hpp"
#include "trainer/report/model_summary.hpp"
#include "trainer/report/start_report.hpp"

namespace nanotron::trainer {
namespace {

// The stages of a run, one trainer after the other.

/// What all stages work with.
struct StageContext {
  const Provenance& provenance;
  comm::ProcessGrid& grid;
  std::vector<Loaders>& loaders;  // of each stage
  Log& log;
  io::NeighbourCopies* copies;  // null: none
};

/// At a boundary the trainer ends with a checkpoint and is gone before the next one takes the same memory and resumes
/// from it: a restart inside of the process. All functions are collective over the world of the grid.
template <class T>
class StagedTraining {
 public:
  /// plans: of each stage, on this rank. The largest is allocated now.
  StagedTraining(TrainingStages& stages, const std::vector<MemoryPlan>& plans, Device& device,
                 const StageContext& context)
      : stages_(stages),
        plans_(plans),
        device_(device),
        context_(context),
        largest_(static_cast<std::size_t>(
            std::ranges::max_element(plans, {}, [](const MemoryPlan& p) { return p.total(); }) - plans.begin())),
        memory_(in_stage(stages, largest_, [&] {
          return RunMemory(stages.config(largest_), context.grid, MemoryPlan::covering(plans));
        })) {}

  /// Finds the state that the deck names, and resumes in its stage.
  void begin() {
    const deck::Config& run = stages_.config(0);
    auto found = stages_.has_several() ? newest_state(context_.grid.world().mpi(), run, context_.copies, context_.log)
                                       : std::nullopt;
    make_trainer(found ? stages_.at(found->info().state.sample_cursor) : 0, std::move(found));
  }

  /// Before the trainer of the present stage runs, to the step that is returned. cost: what is not of a stage.
  std::int64_t enter(Progress& progress, const StepCost& cost) {
    begin_ = {trainer_->step(), trainer_->sample_cursor()};
    const TrainingStages::Point end = stages_.end_of(stage_, begin_);
    announce(progress, cost, end);
    return end.step;
  }

  /// After that: whether the run continues with the next stage, which is then ready. reason: of the trainer; or why
  /// there is no time for the next stage.
  bool goes_on(StopReason& reason, StopConditions& stop, Progress& progress, const StepCost& cost) {
    const auto samples = static_cast<double>(trainer_->sample_cursor() - begin_.sample);
    tokens_ += samples * static_cast<double>(config().data.sequence_length);
    flops_ += samples * flops_per_sample(config());
    if (reason != StopReason::none || trainer_->step() == config().run.steps) return false;
    reason = next_stage(stop, progress, cost);
    return reason == StopReason::none;
  }

  const deck::Config& config() const { return stages_.config(stage_); }
  Trainer<T>& trainer() { return *trainer_; }
  double tokens() const { return tokens_; }  // of the steps so far
  double flops() const { return flops_; }

  /// Of a step of the present stage; the peaks are those of `cost`.
  StepCost cost_of_step(const StepCost& cost) const {
    const auto samples = static_cast<double>(config().data.global_batch_size);
    return {.tokens = samples * static_cast<double>(config().data.sequence_length),
            .flops = samples * flops_per_sample(config()),
            .gemm_peak = cost.gemm_peak,
            .stated_peak = cost.stated_peak};
  }

 private:
  void announce(Progress& progress, const StepCost& cost, const TrainingStages::Point& end) {
    const bool is_last = end.step == config().run.steps;
    progress.enter(config(), cost_of_step(cost),
                   {.from_step = is_last ? 0 : end.step, .flops = is_last ? 0.0 : stages_.flops_after(stage_, end)});
  }

  // Into the stage that begins here, unless its first step would be too late.
  StopReason next_stage(StopConditions& stop, Progress& progress, const StepCost& cost) {
    const NotedRegion region("resume");
    const TrainingStages::Point here{trainer_->step(), trainer_->sample_cursor()};
    const std::size_t next = stages_.at(here.sample);
    stage_ = next;
    announce(progress, cost, stages_.end_of(next, here));
    const StopReason late = stop.check(context_.grid.world(), progress.steps(), progress.recent_seconds()).stop;
    if (late != StopReason::none) return late;
    deck::Config& config = stages_.configs()[next];
    context_.log.info("step {:>7}/{}  {} begins: {} sequences of {} tokens", here.step, config.run.steps,
                      stages_.name(next), config.data.global_batch_size, config.data.sequence_length);
    config.checkpoint.resume = io::step_folder(deck::checkpoint_directory(config), here.step).string();
    in_stage(stages_, next, [&] { make_trainer(next, {}); });
    return StopReason::none;
  }

  void make_trainer(std::size_t stage, std::optional<io::CheckpointReader> checkpoint) {
    stage_ = stage;
    trainer_.reset();
    Arena& arena = stages_.has_several() ? memory_.arena_of(plans_[stage]) : memory_.arena();
    trainer_ = std::make_unique<Trainer<T>>(config(), context_.provenance, context_.grid, device_, arena,
                                            context_.loaders[stage], context_.log, context_.copies);
    context_.log.info("attention: {}", kernels::attention_library<T>(device_, one_head(config())));
    trainer_->resume(std::move(checkpoint));
  }

  TrainingStages& stages_;
  std::vector<MemoryPlan> plans_;
  Device& device_;
  StageContext context_;
  std::size_t largest_, stage_ = 0;
  TrainingStages::Point begin_;  // where the trainer of this stage began in this start
  RunMemory memory_;
  std::unique_ptr<Trainer<T>> trainer_;
  double tokens_ = 0.0, flops_ = 0.0;
};

std::unique_ptr<Timers> make_timers(const deck::Config& config) {
  auto timers =
      make_stream_timers(stream_of(ExecutionSpace()), config.output.timers ? TimerDetail::all : TimerDetail::phases);
  timers->set_phases(run_phases());
  return timers;
}

// What the libraries chose, and the memory that was used.
void report_resources(PreparedRun& run, Device& device, RankMemory memory) {
  comm::Group& world = run.grid.world();
  report_gemm_algorithms(run.stages->config(0), device, world, run.log);
  memory.peak = peak_resident_bytes();
  run.log.summary("{}", peak_text(of_largest(memory, memory.peak, world)));
  if (const std::string text = nccl_text(world); !text.empty()) run.log.summary("{}", text);
}

template <class T>
ExitCode train_as(PreparedRun& run) {
  const deck::Config& config = run.stages->config(0);

  // 1. The device, its GEMM rate and the memory that the run needs.
  start_account().enter("peaks and memory");
  const std::unique_ptr<Timers> timers = make_timers(config);
  Device device(*timers, gemm_mode_of(config));
  const StepCost peaks = measure_peaks<T>(config, device, run.grid.world(), run.log);
  const PlannedMemory memory = plan_memory(run);

  // 2. The state of training: new, from a checkpoint, or from copies on other hosts.
  start_account().enter("state");
  StagedTraining<T> training(*run.stages, memory.plans, device,
                             {run.provenance, run.grid, run.loaders, run.log, run.copies.get()});
  const comm::AbortOnException guard;
  training.begin();
  const std::int64_t first_step = training.trainer().step();
  if (first_step >= config.run.steps) return conclude_without_steps(run, first_step);

  // 3. Steps, to the last one or to a reason to stop.
  start_account().enter("outputs");
  StopConditions stop(with_deadline(config.run, run.start, run.log), run.start);
  std::unique_ptr<io::MetricsFile> metrics =
      begin_outputs(run, {.step = first_step, .sample_cursor = training.trainer().sample_cursor()});
  Progress progress(training.config(), training.cost_of_step(peaks), std::move(metrics), *run.status, run.log,
                    run.start);
  run.status->write(io::RunState::running, first_step);
  start_account().close();
  if (config.output.timers) run.log.info("{}", start_report(run.grid.world()));
  const double begin = wall_seconds();
  timers->reset();
  EnergyMeter meter(device_bus_id());
  StopReason reason = StopReason::none;
  {
    const comm::TimedGroups timed(run.grid, *timers);
    do {
      reason = training.trainer().run(stop, progress, training.enter(progress, peaks));
    } while (training.goes_on(reason, stop, progress, peaks));
  }

  // 4. The end.
  const std::int64_t step = training.trainer().step();
  report_times(config, *timers,
               {.steps = step - first_step,
                .batches = 1.0,
                .seconds = wall_seconds() - begin,
                .cost = {.tokens = training.tokens(),
                         .flops = training.flops(),
                         .gemm_peak = peaks.gemm_peak,
                         .stated_peak = peaks.stated_peak},
                .energy = gather_energy(meter, run.grid)},
               run.grid, run.log);
  if (const std::string text = training.trainer().summary(); !text.empty()) run.log.info("{}", text);
  if (run.copies) run.copies->remove_all();  // the state is in a checkpoint
  report_resources(run, device, memory.largest);
  return conclude(run, step, reason, stop, progress);
}

}  // namespace

ExitCode train(const deck::Config& config, MPI_Comm world, const std::string& status, double start,
               LastWords& last_words) {
  start_account().enter("grid");
  const std::unique_ptr<PreparedRun> run = prepare_run(config, world, status, start, last_words);
  const ExitCode code =
      with_scalar_type(config.precision.compute, [&]<class T>(std::type_identity<T>) { return train_as<T>(*run); });
  comm::barrier(run->grid.world());  // before the first watchdog ends
  return code;
}

void LastWords::belong_to(const std::filesystem::path& output_dir, const std::filesystem::path& status) {
  log_ = output_dir / "run.log";
  status_ = status;
}

void LastWords::tell(int exit_code, const std::string& message) const {
  if (log_.empty()) return;
  Log log(true);
  log.set_quiet(true);
  try {
    log.open(log_);
    log.info("{}\nended with exit code {}", message, exit_code);
  } catch (const Error&) {  // the message is on stderr
  }
  io::mark_failed(status_, exit_code, message);
}

}  // namespace nanotron::trainer
