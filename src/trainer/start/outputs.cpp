#include <cstring>
#include <filesystem>

#include "nanotron/base/error.hpp"
#include "nanotron/comm/communicator.hpp"
#include "nanotron/deck/named_files.hpp"
#include "nanotron/io/files/text_file.hpp"
#include "nanotron/trainer/state/run_resources.hpp"
#include "steps.hpp"

namespace nanotron::trainer {
namespace {

// What the ledger says of a start in words.
Provenance lineage_of(const deck::Config& config, const Provenance& provenance) {
  const std::string grid = grid_line(config);
  Provenance rows{{"grid", grid.substr(grid.find(' ') + 1, grid.find('\n') - grid.find(' ') - 1)}};
  for (const auto& row : provenance) {
    for (const char* name : {"start_time", "hosts", "ranks", "git_hash", "SLURM_JOB_ID", "PBS_JOBID", "PJM_JOBID"}) {
      if (row.first == name) rows.push_back(row);
    }
  }
  return rows;
}

std::string how_to_go_on(const deck::CheckpointConfig& checkpoint) {
  const std::string& named = checkpoint.first_resume.empty() ? checkpoint.resume : checkpoint.first_resume;
  if (named == "auto") return "the same command resumes from here";
  return fmt::format(
      "to resume from here: --set checkpoint.resume=auto, or the same --status file (with resume = '{}' alone the same "
      "command starts there again)",
      named);
}

}  // namespace

std::unique_ptr<io::MetricsFile> begin_outputs(PreparedRun& run, const io::CheckpointState& from) {
  const deck::Config& config = run.stages->config(0);
  Log& log = run.log;
  const std::filesystem::path folder = config.run.output_dir;
  std::unique_ptr<io::MetricsFile> metrics;
  comm::collectively(run.grid.world().mpi(), [&] {
    if (!log.is_writer()) return;
    if (const int cause = io::replace_text(folder / "deck.nml", deck::canonical_deck(config)); cause != 0)
      log.warn("{} cannot be written: {}", (folder / "deck.nml").string(), std::strerror(cause));
    const std::vector<io::ExtraColumn> extra = statistics_columns(config);
    const io::MetricsStart begin{.provenance = run.provenance,
                                 .deck = deck::canonical_deck(config),
                                 .title = config.run.title,
                                 .extra = extra,
                                 .validation_sets = deck::validation_set_names(config.data),
                                 .sample_cursor = from.sample_cursor,
                                 .keeps_starts = config.checkpoint.resume == "auto",
                                 .start = start_row(run.start),
                                 .lineage = lineage_of(config, run.provenance)};
    try {
      metrics = std::make_unique<io::MetricsFile>(folder / "metrics.h5", from.step, begin, log);
    } catch (const Error& error) {
      log.warn("this start has no metrics: {}", reason(error));
    }
  });
  return metrics;
}

ExitCode conclude(PreparedRun& run, std::int64_t step, StopReason reason, StopConditions& stop, Progress& progress) {
  const deck::Config& config = run.stages->config(0);
  Log& log = run.log;
  if (reason == StopReason::none) {
    log.summary("finished: {} steps, {:.1f} s; {}", step, wall_seconds() - run.start, progress.summary());
    run.status->write(io::RunState::finished, step);
    if (log.is_writer() && stop.file_was_found()) stop.remove_file(log);
    progress.end(io::StartEnd::finished);
    return ExitCode::ok;
  }
  log.summary("stopped after step {} of {}: {}; {}; {}", step, config.run.steps, describe(reason),
              how_to_go_on(config.checkpoint), progress.summary());
  const bool is_held = log.is_writer() && stop.file_was_found();
  run.status->write(is_held ? io::RunState::held : io::RunState::stopped, step);
  if (is_held) stop.remove_file(log);
  progress.end(io::StartEnd::stopped);
  return ExitCode::stopped_early;
}

ExitCode conclude_without_steps(PreparedRun& run, std::int64_t step) {
  const deck::Config& config = run.stages->config(0);
  if (run.copies) run.copies->remove_all();
  run.log.summary("nothing to do: {} is at step {}{} run%steps = {}; raise run%steps to continue",
                  config.run.output_dir, step, step == config.run.steps ? " of" : ", beyond", config.run.steps);
  run.status->write(io::RunState::finished, step);
  return ExitCode::ok;
}

}  // namespace nanotron::trainer
