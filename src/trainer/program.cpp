#include "nanotron/trainer/program.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <utility>

#include "block_times.hpp"
#include "data_summary.hpp"
#include "lost_checkpoints.hpp"
#include "model_summary.hpp"
#include "nanotron/base/error.hpp"
#include "nanotron/base/files.hpp"
#include "nanotron/base/log.hpp"
#include "nanotron/base/provenance.hpp"
#include "nanotron/base/resident.hpp"
#include "nanotron/comm/agreement.hpp"
#include "nanotron/comm/collectives.hpp"
#include "nanotron/comm/mpi_session.hpp"
#include "nanotron/comm/recorded_groups.hpp"
#include "nanotron/comm/timed_groups.hpp"
#include "nanotron/comm/waiting.hpp"
#include "nanotron/deck/layer_counts.hpp"
#include "nanotron/deck/named_files.hpp"
#include "nanotron/deck/read_deck.hpp"
#include "nanotron/io/run_lock.hpp"
#include "nanotron/io/shared_file.hpp"
#include "nanotron/io/text_file.hpp"
#include "nanotron/kernels/gemm/gemm_peak.hpp"
#include "nanotron/kernels/gemm/stated_peak.hpp"
#include "nanotron/model/cost.hpp"
#include "nanotron/tensor/device_name.hpp"
#include "nanotron/tensor/stream_timers.hpp"
#include "nanotron/trainer/binding.hpp"
#include "nanotron/trainer/checkpoint_times.hpp"
#include "nanotron/trainer/choose_bucket.hpp"
#include "nanotron/trainer/data_identity.hpp"
#include "nanotron/trainer/deck_features.hpp"
#include "nanotron/trainer/faulty_hosts.hpp"
#include "nanotron/trainer/gemm_algorithms.hpp"
#include "nanotron/trainer/hang/watchdog.hpp"
#include "nanotron/trainer/host_memory.hpp"
#include "nanotron/trainer/pipeline_text.hpp"
#include "nanotron/trainer/run_report.hpp"
#include "nanotron/trainer/stop_conditions.hpp"
#include "nanotron/trainer/token_files.hpp"
#include "nanotron/trainer/trainer.hpp"
#include "rank_memory.hpp"
#include "staged_training.hpp"

namespace nanotron::trainer {
namespace {

// The overrides of rank 0's command line, on every rank.
std::vector<std::string> overrides_of_root(MPI_Comm world, const std::vector<std::string>& overrides) {
  const std::string packed = comm::text_of_root(world, [&] {
    std::string all;
    for (const std::string& set : overrides) all += set + '\0';
    return all;
  });
  std::vector<std::string> list;
  for (std::size_t begin = 0; begin < packed.size(); begin = packed.find('\0', begin) + 1) {
    list.emplace_back(packed.substr(begin, packed.find('\0', begin) - begin));
  }
  return list;
}

// The pp that the layer counts in pp_layers imply.
std::int64_t named_stages(const deck::ParallelConfig& p) {
  const auto counts = deck::layer_counts(p.pp_layers);
  return counts ? static_cast<std::int64_t>(counts->size()) / deck::virtual_stages(p) : 1;
}

// pp x dp x tp x cp. A degree of 0 counts as the smallest that fits: pp as in pp_layers,
// dp = lcm(zero_size, ep / gcd(ep, cp)), tp = cp = 1.
std::int64_t named_ranks(const deck::ParallelConfig& p) {
  std::int64_t product = p.pp > 0 ? p.pp : std::max<std::int64_t>(named_stages(p), 1);
  for (const std::int64_t degree : {p.dp, p.tp, p.cp}) product *= std::max<std::int64_t>(degree, 1);
  if (p.dp > 0) return product;
  const std::int64_t shards = p.zero_stage > 0 ? std::max<std::int64_t>(p.zero_size, 1) : 1;
  return product * std::lcm(shards, p.ep / std::gcd(p.ep, std::max<std::int64_t>(p.cp, 1)));
}

// GEMM peak of all ranks together, measured; written to the log.
template <class T>
double gemm_peak(Device& device, comm::Group& world, Log& log) {
  const index_t order = kernels::gemm_peak_order<T>(device);
  comm::barrier(world);
  const double rate = comm::sum(world, kernels::gemm_peak<T>(device, order, 0.1));
  log.info("measured GEMM peak: {} {}, order {}, {:.1f} GFLOP/s on all ranks together", name_of(scalar_type_of<T>),
           kernels::gemm_library<T>(), order, rate / 1e9);
  return rate;
}

// Stated peak of all ranks' devices together; 0 where it is not known. Written to the log.
double stated_peak(const deck::Config& config, comm::Group& world, Log& log) {
  const std::string name = device_name();
  const double mine = config.output.peak_tflops > 0.0 ? 1e12 * config.output.peak_tflops
                                                      : kernels::stated_peak(name, config.precision.compute);
  if (comm::min(world, mine) == 0.0) return 0.0;
  log.info("stated peak: {} {:.4g} TFLOP/s on each rank ({})", name_of(config.precision.compute), mine / 1e12,
           config.output.peak_tflops > 0.0 ? "output%peak_tflops" : name);
  return comm::sum(world, mine);
}

// What the ledger says of a start in words.
Provenance lineage_of(const deck::Config& config, const Provenance& provenance) {
  const std::string grid = grid_line(config);
  Provenance rows{{"grid", grid.substr(grid.find(' ') + 1, grid.find('\n') - grid.find(' ') - 1)}};
  for (const auto& row : provenance) {
    for (const char* name : {"start_time", "hosts", "ranks", "git_hash", "SLURM_JOB_ID", "PBS_JOBID"}) {
      if (row.first == name) rows.push_back(row);
    }
  }
  return rows;
}

// Writes deck.nml and opens metrics.h5, after all checks have passed; training needs neither, so that what is wrong
// with them is a warning. The result is null on all ranks but the one that speaks, and where there is no file.
std::unique_ptr<io::MetricsFile> begin_outputs(const deck::Config& config, const Provenance& provenance,
                                               comm::Group& world, const io::CheckpointState& from, double start,
                                               Log& log) {
  const std::filesystem::path folder = config.run.output_dir;
  std::unique_ptr<io::MetricsFile> metrics;
  comm::collectively(world.mpi(), [&] {
    if (!log.speaks()) return;
    if (const int cause = io::replace_text(folder / "deck.nml", deck::canonical_deck(config)); cause != 0)
      log.warn("{} cannot be written: {}", (folder / "deck.nml").string(), std::strerror(cause));
    const io::MetricsStart begin{
        .provenance = provenance,
        .deck = deck::canonical_deck(config),
        .title = config.run.title,
        .what = config.model.moe.num_experts > 0 ? io::MetricsOf::experts : io::MetricsOf::dense_model,
        .validation_sets = deck::validation_set_names(config.data),
        .sample_cursor = from.sample_cursor,
        .keeps_starts = config.checkpoint.resume == "auto",
        .start = start_row(start),
        .lineage = lineage_of(config, provenance)};
    try {
      metrics = std::make_unique<io::MetricsFile>(folder / "metrics.h5", from.step, begin, log);
    } catch (const Error& error) {
      log.warn("this start has no metrics: {}", reason(error));
    }
  });
  return metrics;
}

std::string how_to_go_on(const deck::CheckpointConfig& checkpoint) {
  const std::string& named = checkpoint.first_resume.empty() ? checkpoint.resume : checkpoint.first_resume;
  if (named == "auto") return "the same command goes on from here";
  return fmt::format(
      "to go on from here: --set checkpoint.resume=auto, or the same --status file (with resume = '{}' alone the same "
      "command starts there again)",
      named);
}

// The last words of a run that began at `start`.
ExitCode conclude(const deck::Config& config, std::int64_t step, StopReason reason, StopConditions& stop,
                  Progress& progress, io::RunStatus& status, Log& log, double start) {
  if (reason == StopReason::none) {
    log.summary("finished: {} steps, {:.1f} s; {}", step, wall_seconds() - start, progress.summary());
    status.write(io::RunState::finished, step);
    if (log.speaks() && stop.file_was_found()) stop.remove_file(log);
    progress.end(io::StartEnd::finished);
    return ExitCode::ok;
  }
  log.summary("stopped after step {} of {}: {}; {}; {}", step, config.run.steps, describe(reason),
              how_to_go_on(config.checkpoint), progress.summary());
  const bool is_held = log.speaks() && stop.file_was_found();
  status.write(is_held ? io::RunState::held : io::RunState::stopped, step);
  if (is_held) stop.remove_file(log);
  progress.end(io::StartEnd::stopped);
  return ExitCode::stopped_early;
}

// What each stage needs on this rank; written to the log.
std::vector<StepPlan> plans_of(const RunStages& stages, comm::ProcessGrid& grid, RankMemory& memory, Log& log) {
  std::vector<StepPlan> plans;
  for (std::size_t k = 0; k < stages.size(); ++k) {
    plans.push_back(in_stage(stages, k, [&] { return plan_step(stages.config(k), grid.coordinate()); }));
    RankMemory of_stage = memory;
    of_stage.checkpoint = plans[k].checkpoint_bytes;
    of_stage.plan = plans[k].memory;
    if (of_stage.plan.total() > memory.plan.total()) memory = of_stage;
    log.info("{}{}", stages.has_several() ? stages.name(k) + ": " : "",
             plan_text(of_largest(of_stage, memory.staging + of_stage.plan.total(), grid.world())));
  }
  return plans;
}

void tell_filled(const deck::Config& config, const std::vector<Loaders>& loaders, Log& log) {
  if (config.data.sequences != deck::SequenceKind::documents) return;
  for (const Loaders& of_stage : loaders) {
    log.info("training data: whole documents in {} sequences, {:.1f} % of their positions filled",
             of_stage.training.number_of_sequences(), 100.0 * of_stage.training.filled());
  }
}

// Trains with compute type T, after the set-up that all types share.
template <class T>
ExitCode train_as(RunStages& stages, const StageContext& context, io::RunStatus& status, double start) {
  const deck::Config& config = stages.config(0);
  comm::ProcessGrid& grid = context.grid;
  Log& log = context.log;
  const std::unique_ptr<Timers> timers =
      make_stream_timers(stream_of(ExecutionSpace()), config.output.timers ? TimerDetail::all : TimerDetail::phases);
  timers->set_phases(run_phases());
  Device device(*timers, gemm_mode_of(config));
  const double measured = gemm_peak<T>(device, grid.world(), log);
  use_gemm_algorithms(config, device, grid.world(), log);
  const StepCost peaks{.gemm_peak = measured, .stated_peak = stated_peak(config, grid.world(), log)};
  RankMemory memory{.program = resident_bytes(), .staging = staging_bytes(grid), .plan = {}};
  std::vector<MemoryPlan> plans;
  for (const StepPlan& plan : plans_of(stages, grid, memory, log)) plans.push_back(plan.memory);
  const std::uint64_t state = built_for == Processor::gpu ? 0 : memory.plan.total();
  check_host_memory(memory.staging + state, memory.program + memory.checkpoint, grid, log);
  tell_filled(config, context.loaders, log);

  StagedTraining<T> training(stages, plans, device, context);
  const comm::AbortOnException guard;
  training.begin();
  const std::int64_t first_step = training.trainer().step();
  if (first_step >= config.run.steps) {
    if (context.copies != nullptr) context.copies->remove_all();
    log.summary("nothing to do: {} is at step {}{} run%steps = {}; raise run%steps to go on", config.run.output_dir,
                first_step, first_step == config.run.steps ? " of" : ", beyond", config.run.steps);
    status.write(io::RunState::finished, first_step);
    return ExitCode::ok;
  }
  StopConditions stop(with_deadline(config.run, start, log), start);
  std::unique_ptr<io::MetricsFile> metrics =
      begin_outputs(config, context.provenance, grid.world(),
                    {.step = first_step, .sample_cursor = training.trainer().sample_cursor()}, start, log);
  Progress progress(training.config(), training.cost_of_step(peaks), std::move(metrics), status, log, start);

  status.write(io::RunState::running, first_step);
  const double begin = wall_seconds();
  timers->reset();
  EnergyMeter meter(device_bus_id());
  const StopReason reason = [&] {
    const comm::TimedGroups timed(grid, *timers);
    return training.run(stop, progress, peaks);
  }();
  report_times(config, *timers,
               {.steps = training.trainer().step() - first_step,
                .batches = 1.0,
                .seconds = wall_seconds() - begin,
                .cost = {.tokens = training.tokens(),
                         .flops = training.flops(),
                         .gemm_peak = peaks.gemm_peak,
                         .stated_peak = peaks.stated_peak},
                .energy = gather_energy(meter, grid)},
               grid, log);
  if (context.copies != nullptr) context.copies->remove_all();  // the state is in a checkpoint
  tell_gemm_choices(config, device, grid.world(), log);
  memory.peak = peak_resident_bytes();
  log.summary("{}", peak_text(of_largest(memory, memory.peak, grid.world())));
  if (const std::string text = nccl_text(grid.world()); !text.empty()) log.summary("{}", text);
  return conclude(config, training.trainer().step(), reason, stop, progress, status, log, start);
}

// Creates and locks the directories that the run writes into, and opens the log. The locks last as long as the result.
std::vector<io::RunLock> prepare_run_directory(const deck::Config& config, comm::Group& world, Log& log) {
  const std::filesystem::path run = config.run.output_dir, checkpoints = deck::checkpoint_directory(config);
  std::vector<io::RunLock> locks;
  comm::collectively(world.mpi(), [&] {
    if (world.rank() != 0) return;
    locks.emplace_back(run, log);
    try {
      log.open(run / "run.log");
    } catch (const Error& error) {
      log.warn("{}", reason(error));
    }
    remove_old_hang_reports(run);
    if (!files::is_same(run, checkpoints)) locks.emplace_back(checkpoints, log);
  });
  for (const auto& directory : {run, checkpoints}) {
    io::require_same_file(world.mpi(), directory / "run.lock", ExitCode::system_error);
  }
  return locks;
}

// From here to its end the run is watched; null where the deck wants no watchdog.
std::unique_ptr<Watchdog> watch(const deck::Config& config, comm::ProcessGrid& grid, const std::string& status) {
  if (config.run.hang_timeout == 0.0) return nullptr;
  comm::record_groups(grid);
  return std::make_unique<Watchdog>(WatchdogSetup{.output_dir = config.run.output_dir,
                                                  .timeout = config.run.hang_timeout,
                                                  .rank = grid.world().rank(),
                                                  .hosts = grid.hosts(),
                                                  .status = status});
}

}  // namespace

deck::Config load_config(MPI_Comm world, const std::string& path, const std::vector<std::string>& overrides,
                         GridRanks ranks) {
  const std::string text = comm::text_of_root(world, [&] { return deck::read_deck_file(path); });
  std::string warnings;
  int rank = 0, world_size = 1;
  NANOTRON_CHECK_MPI(MPI_Comm_rank(world, &rank));
  NANOTRON_CHECK_MPI(MPI_Comm_size(world, &world_size));
  std::optional<std::int64_t> known;
  if (ranks == GridRanks::of_world) known = world_size;
  deck::Config config = read_deck_text(text, path, overrides_of_root(world, overrides), &warnings, known);
  if (rank == 0 && !warnings.empty()) fmt::print(stderr, "{}\n", warnings);
  const std::int64_t size = known ? *known : named_ranks(config.parallel);
  resolve(config, size);
  if (config.model.vocab_size == 0) {
    config.model.vocab_size = vocabulary_of_data(config, world);
    resolve(config, size);  // the checks that need vocab_size
  }
  return config;
}

std::optional<deck::Machine> load_machine(MPI_Comm world, const std::string& path) {
  if (path.empty()) return std::nullopt;
  return deck::read_machine(path, comm::text_of_root(world, [&] { return deck::read_deck_file(path); }));
}

comm::ProcessGrid make_grid(MPI_Comm world, const deck::Config& config) {
  const comm::Communicator all = comm::Communicator::duplicate(world);
  if (computes_bad_steps_again(config)) comm::want_repeatable_sums();
  comm::ProcessGrid grid(all, comm::shape_of(config), comm::choose_transport(config.parallel.backend, all));
  for (comm::Group* const ring : {&grid.pp(), &grid.cp()}) {
    ring->limit_message_blocks(static_cast<int>(config.parallel.message_blocks));
  }
  return grid;
}

std::string grid_line(const deck::Config& config) {
  const comm::GridShape shape = comm::shape_of(config);
  return fmt::format("grid: dp {} x pp {} x cp {} x tp {} = {} ranks{}\n", shape.dp, shape.pp, shape.cp, shape.tp,
                     shape.size(), shape.ep > 1 ? fmt::format(", ep {} inside dp x cp", shape.ep) : "");
}

ExitCode train(const deck::Config& of_deck, MPI_Comm world, const std::string& status_file, double start,
               LastWords& last_words) {
  deck::Config config = of_deck;
  comm::ProcessGrid grid = make_grid(world, config);
  Log log(grid.world().rank() == 0, grid.world().rank());
  log.set_quiet(config.output.console == deck::Console::quiet);
  const std::vector<io::RunLock> locks = prepare_run_directory(config, grid.world(), log);
  last_words.belong_to(config.run.output_dir, status_file);
  const std::unique_ptr<Watchdog> watchdog = watch(config, grid, status_file);
  std::optional<io::RunStatus> job;
  comm::collectively(world, [&] {
    job.emplace(status_file, config.run.output_dir, deck::checkpoint_directory(config), config.run.steps, log);
    require_listed(config, job->checkpoint(), status_file);
  });
  io::RunStatus& status = *job;
  status.write(io::RunState::starting, 0);
  if (!comm::text_of_root(world, [&] { return status.checkpoint(); }).empty() && config.checkpoint.resume != "auto") {
    log.info("an earlier start of this job wrote checkpoints or copies: checkpoint%resume = 'auto' in place of '{}'",
             config.checkpoint.resume);
    config.checkpoint.first_resume = std::exchange(config.checkpoint.resume, "auto");
  }
  Provenance provenance = build_provenance();
  for (auto& item : run_provenance(world)) provenance.push_back(std::move(item));
  log.info("{}", nanotron::to_text(provenance));
  log.info("{}", model_summary(config));
  log.info("{}", grid.placement());
  check_binding(grid, log);
  warn_of_excluded_hosts(config, grid, log);
  if (const std::string text = unsaved_text(config.checkpoint); !text.empty()) log.warn("{}", text);
  if (comm::waits_asleep()) log.info("more ranks than cores on a node (or NANOTRON_WAIT): ranks sleep while they wait");
  log.info("data: {}; tensor-parallel group by {}, context-parallel by {}, data-parallel by {}, expert-parallel by {}",
           config.data.path, grid.tp().path(), grid.cp().path(), grid.data_parallel().path(), grid.ep().path());

  const std::unique_ptr<TokenFiles> opened = open_token_files(config, world, log);
  const TokenFiles& tokens = *opened;
  RunStages stages(config);
  const std::vector<io::DataFile> data = data_of(tokens, config, world);
  std::vector<Loaders> loaders;
  for (std::size_t k = 0; k < stages.size(); ++k) {
    loaders.push_back(in_stage(stages, k, [&] { return make_loaders(stages.config(k), tokens, grid.coordinate()); }));
    loaders.back().data = data;
  }
  if (const std::string text = entropy_text(tokens, config.data); !text.empty()) log.info("{}", text);
  for (const std::string& text : data_tables(stages, loaders)) log.info("{}", text);
  for (deck::Config& stage : stages.configs()) choose_pipeline_cut(stage, grid);
  choose_bucket(stages.configs().front(), grid, log);
  stages.share_choices();
  if (config.parallel.pp > 1) {
    for (const deck::Config& stage : stages.configs()) log.info("{}", describe_pipeline(stage));
  }
  const std::unique_ptr<io::NeighbourCopies> copies = make_copies(config, grid, world, log);
  const ExitCode code = with_scalar_type(config.precision.compute, [&]<class T>(std::type_identity<T>) {
    return train_as<T>(stages, {provenance, grid, loaders, log, copies.get()}, status, start);
  });
  comm::barrier(grid.world());  // before the first watchdog ends
  return code;
}

}  // namespace nanotron::trainer
