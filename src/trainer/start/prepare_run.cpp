#include <filesystem>
#include <utility>

#include "nanotron/base/error.hpp"
#include "nanotron/base/files.hpp"
#include "nanotron/base/start_account.hpp"
#include "nanotron/comm/communicator.hpp"
#include "nanotron/comm/session/waiting.hpp"
#include "nanotron/comm/watch/recorded_groups.hpp"
#include "nanotron/deck/named_files.hpp"
#include "nanotron/io/files/shared_file.hpp"
#include "nanotron/trainer/checkpoint/checkpoint_times.hpp"
#include "nanotron/trainer/data/run_data.hpp"
#include "nanotron/trainer/report/binding.hpp"
#include "nanotron/trainer/report/pipeline_text.hpp"
#include "nanotron/trainer/start/measured_keys.hpp"
#include "nanotron/trainer/start/network_variables.hpp"
#include "nanotron/trainer/state/run_resources.hpp"
#include "steps.hpp"
#include "trainer/checkpoint/resume.hpp"
#include "trainer/faults/faulty_hosts.hpp"
#include "trainer/report/model_summary.hpp"

namespace nanotron::trainer {
namespace {

// Creates and locks the directories that the run writes into, and opens the log. The locks last as long as the result.
std::vector<io::RunLock> lock_folders(const deck::Config& config, comm::Group& world, Log& log) {
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
    io::require_same_file(world.mpi(), directory / "run.lock", ExitCode::system_error, 10.0, comm::leads_host());
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

// The state of the job, and its start: a job that has written checkpoints resumes from them.
void begin_status(PreparedRun& run, const std::string& file) {
  deck::CheckpointConfig& checkpoint = run.config.checkpoint;
  const MPI_Comm world = run.grid.world().mpi();
  comm::collectively(world, [&] {
    run.status.emplace(file, run.config.run.output_dir, deck::checkpoint_directory(run.config), run.config.run.steps,
                       run.log);
    require_listed(run.config, run.status->checkpoint(), file);
  });
  run.status->write(io::RunState::starting, 0);
  if (!comm::text_of_root(world, [&] { return run.status->checkpoint(); }).empty() && checkpoint.resume != "auto") {
    run.log.info(
        "an earlier start of this job wrote checkpoints or copies: using checkpoint%resume = 'auto' instead of '{}'",
        checkpoint.resume);
    checkpoint.first_resume = std::exchange(checkpoint.resume, "auto");
  }
}

void describe_run(PreparedRun& run) {
  const std::vector<std::string> places = comm::texts_at_root(run.grid.world().mpi(), place_of_process());
  if (run.log.is_writer()) {  // who writes the files has their provenance; it grows with the number of ranks
    run.provenance = build_provenance();
    for (auto& item : run_provenance(places)) run.provenance.push_back(std::move(item));
    run.log.info("{}", nanotron::to_text(run.provenance));
    run.log.info("{}", model_summary(run.config));
    run.log.info("{}", run.grid.placement());
  }
  check_binding(run.grid, run.log);
  warn_of_excluded_hosts(run.config, run.grid, run.log);
  if (const std::string text = unsaved_text(run.config.checkpoint); !text.empty()) run.log.warn("{}", text);
  for (const std::string& text : network_warnings()) run.log.warn("{}", text);
  if (comm::waits_asleep())
    run.log.info("more ranks than cores on a node (or NANOTRON_WAIT): ranks sleep while they wait");
  run.log.info(
      "data: {}; tensor-parallel group by {}, context-parallel by {}, data-parallel by {}, expert-parallel by {}",
      deck::files_text(run.config.data.path), run.grid.tp().path(), run.grid.cp().path(),
      run.grid.data_parallel().path(), run.grid.ep().path());
}

void open_data(PreparedRun& run) {
  const MPI_Comm world = run.grid.world().mpi();
  run.tokens = open_token_files(run.config, world, run.log, run.grid.node().get());
  fill_weights(*run.tokens, run.config);
  const std::vector<io::DataFile> data = data_of(*run.tokens, run.config, world);
  const TrainingStages& stages = run.stages.emplace(run.config);
  for (std::size_t k = 0; k < stages.size(); ++k) {
    run.loaders.push_back(
        in_stage(stages, k, [&] { return make_loaders(stages.config(k), *run.tokens, run.grid.coordinate()); }));
    run.loaders.back().data = data;
  }
  if (const std::string text = entropy_text(*run.tokens, run.config.data); !text.empty()) run.log.info("{}", text);
  for (const std::string& text : data_tables(stages, run.loaders)) run.log.info("{}", text);
}

// What the deck leaves to a measurement.
void choose_by_measurement(PreparedRun& run) {
  for (deck::Config& stage : run.stages->configs()) choose_pipeline_cut(stage, run.grid);
  choose_bucket(run.stages->configs().front(), run.grid, run.log);
  run.stages->share_bucket_size();
  if (run.config.parallel.pp == 1) return;
  for (const deck::Config& stage : run.stages->configs()) run.log.info("{}", describe_pipeline(stage));
}

}  // namespace

PreparedRun::PreparedRun(const deck::Config& deck, MPI_Comm world, double began)
    : start(began), config(deck), grid(make_grid(world, config)), log(grid.world().rank() == 0, grid.world().rank()) {
  log.set_quiet(config.output.console == deck::Console::quiet);
}

std::unique_ptr<PreparedRun> prepare_run(const deck::Config& config, MPI_Comm world, const std::string& status,
                                         double start, LastWords& last_words) {
  auto run = std::make_unique<PreparedRun>(config, world, start);
  start_account().enter("folders and hosts");
  run->locks = lock_folders(run->config, run->grid.world(), run->log);
  last_words.belong_to(run->config.run.output_dir, status);
  run->watchdog = watch(run->config, run->grid, status);
  begin_status(*run, status);
  describe_run(*run);
  start_account().enter("data");
  open_data(*run);
  choose_by_measurement(*run);
  run->copies = make_copies(run->config, run->grid, world, run->log);
  return run;
}

}  // namespace nanotron::trainer
