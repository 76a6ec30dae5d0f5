#include "nanotron/trainer/start/train.hpp"

#include "nanotron/base/energy_meter.hpp"
#include "nanotron/base/resident.hpp"
#include "nanotron/comm/collectives.hpp"
#include "nanotron/comm/session/mpi_session.hpp"
#include "nanotron/comm/watch/timed_groups.hpp"
#include "nanotron/tensor/device_name.hpp"
#include "nanotron/tensor/stream_timers.hpp"
#include "nanotron/trainer/report/run_report.hpp"
#include "nanotron/trainer/start/gemm_algorithms.hpp"
#include "steps.hpp"
#include "trainer/loop/staged_training.hpp"

namespace nanotron::trainer {
namespace {

std::unique_ptr<Timers> make_timers(const deck::Config& config) {
  auto timers =
      make_stream_timers(stream_of(ExecutionSpace()), config.output.timers ? TimerDetail::all : TimerDetail::phases);
  timers->set_phases(run_phases());
  return timers;
}

// What the libraries chose, and the memory that was used.
void report_resources(PreparedRun& run, Device& device, RankMemory memory) {
  comm::Group& world = run.grid.world();
  tell_gemm_choices(run.stages->config(0), device, world, run.log);
  memory.peak = peak_resident_bytes();
  run.log.summary("{}", peak_text(of_largest(memory, memory.peak, world)));
  if (const std::string text = nccl_text(world); !text.empty()) run.log.summary("{}", text);
}

template <class T>
ExitCode train_as(PreparedRun& run) {
  const deck::Config& config = run.stages->config(0);

  // 1. The device, its GEMM rate and the memory that the run needs.
  const std::unique_ptr<Timers> timers = make_timers(config);
  Device device(*timers, gemm_mode_of(config));
  const StepCost peaks = measure_peaks<T>(config, device, run.grid.world(), run.log);
  const PlannedMemory memory = plan_memory(run);

  // 2. The state of training: new, from a checkpoint, or from copies on other hosts.
  StagedTraining<T> training(*run.stages, memory.plans, device,
                             {run.provenance, run.grid, run.loaders, run.log, run.copies.get()});
  const comm::AbortOnException guard;
  training.begin();
  const std::int64_t first_step = training.trainer().step();
  if (first_step >= config.run.steps) return conclude_without_steps(run, first_step);

  // 3. Steps, to the last one or to a reason to stop.
  StopConditions stop(with_deadline(config.run, run.start, run.log), run.start);
  std::unique_ptr<io::MetricsFile> metrics =
      begin_outputs(run, {.step = first_step, .sample_cursor = training.trainer().sample_cursor()});
  Progress progress(training.config(), training.cost_of_step(peaks), std::move(metrics), *run.status, run.log,
                    run.start);
  run.status->write(io::RunState::running, first_step);
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
  if (run.copies) run.copies->remove_all();  // the state is in a checkpoint
  report_resources(run, device, memory.largest);
  return conclude(run, step, reason, stop, progress);
}

}  // namespace

ExitCode train(const deck::Config& config, MPI_Comm world, const std::string& status, double start,
               LastWords& last_words) {
  const std::unique_ptr<PreparedRun> run = prepare_run(config, world, status, start, last_words);
  const ExitCode code =
      with_scalar_type(config.precision.compute, [&]<class T>(std::type_identity<T>) { return train_as<T>(*run); });
  comm::barrier(run->grid.world());  // before the first watchdog ends
  return code;
}

}  // namespace nanotron::trainer
