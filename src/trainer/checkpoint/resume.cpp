#include "trainer/checkpoint/resume.hpp"

#include <fmt/format.h>

#include <exception>
#include <string>

#include "nanotron/base/error.hpp"
#include "nanotron/comm/communicator.hpp"
#include "nanotron/deck/config.hpp"
#include "nanotron/io/metrics/recorded_checkpoints.hpp"

namespace nanotron::trainer {
namespace {

std::optional<io::CheckpointReader> newest_of_run(MPI_Comm world, const deck::Config& config,
                                                  io::NeighbourCopies* copies, Log& log) {
  const std::filesystem::path directory = deck::checkpoint_directory(config);
  const auto from_file = [&] { return io::CheckpointReader::find(world, directory, config.checkpoint.resume, log); };
  if (copies == nullptr || config.checkpoint.resume != "auto") return from_file();
  const std::int64_t listed = io::CheckpointReader::newest_listed(world, directory);
  if (auto found = copies->newest(listed)) return found;
  std::optional<io::CheckpointReader> file;
  std::exception_ptr refused;
  try {
    if (auto found = from_file()) file.emplace(std::move(*found));
  } catch (const Error& error) {
    if (error.exit_code() != ExitCode::data_error) throw;
    refused = std::current_exception();
  }
  const std::int64_t step = file ? file->info().state.step : -1;
  if (step == listed) return file;
  if (auto found = copies->newest(step)) return found;  // the newest checkpoint is damaged
  if (refused) std::rethrow_exception(refused);
  return file;
}

void require_nothing_lost(MPI_Comm world, const deck::Config& config, const io::NeighbourCopies* copies) {
  int rank = 0;
  NANOTRON_CHECK_MPI(MPI_Comm_rank(world, &rank));
  comm::collectively(world, [&] {
    if (rank == 0) require_none_recorded(config);
  });
  if (copies == nullptr || copies->unseen_host().empty()) return;
  fail(ExitCode::system_error,
       {.what = "the copies of this run cannot be read on all hosts, and there is no checkpoint",
        .where = fmt::format("host {}, {}", copies->unseen_host(), config.checkpoint.neighbour_directory),
        .change = "check the disk of that host and start again, or exclude the host; to start from scratch: --set "
                  "checkpoint.resume=none"});
}

}  // namespace

std::unique_ptr<io::NeighbourCopies> make_copies(const deck::Config& config, const comm::ProcessGrid& grid,
                                                 MPI_Comm world, Log& log) {
  if (config.checkpoint.neighbour_every_steps == 0) return nullptr;
  const std::filesystem::path directory = deck::checkpoint_directory(config);
  const bool goes_on = config.checkpoint.resume == "auto";
  const std::string run =
      io::run_identity(world, directory, goes_on ? io::Identity::of_directory : io::Identity::fresh);
  auto copies =
      std::make_unique<io::NeighbourCopies>(world,
                                            io::CopyLocation{.directory = config.checkpoint.neighbour_directory,
                                                             .run = run,
                                                             .hosts = grid.hosts(),
                                                             .checkpoints = directory},
                                            log);
  copies->remove_those_of(io::earlier_identities(world, directory));
  return copies;
}

std::optional<io::CheckpointReader> newest_state(MPI_Comm world, const deck::Config& config,
                                                 io::NeighbourCopies* copies, Log& log) {
  auto found = newest_of_run(world, config, copies, log);
  const std::string& first = config.checkpoint.first_resume;
  if (found) return found;
  if (config.checkpoint.resume == "auto") require_nothing_lost(world, config, copies);
  if (first.empty()) return found;
  log.warn("no checkpoint or copy of earlier starts of this job is left: using checkpoint%resume = '{}' again", first);
  return io::CheckpointReader::find(world, deck::checkpoint_directory(config), first, log);
}

namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse(const fs::path& directory, const std::string& record, const std::string& also) {
  fail(ExitCode::system_error,
       {.what = "the checkpoints of this run are missing",
        .expected = record,
        .found = "no step folder",
        .where = directory.string(),
        .change = fmt::format("check that its file system is mounted and complete, then start again; or give a "
                              "checkpoint with checkpoint%resume. To start from scratch on purpose: "
                              "--set checkpoint.resume=none{}",
                              also)});
}

}  // namespace

void require_none_recorded(const deck::Config& config) {
  const fs::path directory = deck::checkpoint_directory(config);
  const fs::path ledger = fs::path(config.run.output_dir) / "metrics.h5";
  if (const std::string record = io::recorded_checkpoint(directory); !record.empty()) refuse(directory, record, "");
  if (const std::int64_t step = io::newest_recorded_checkpoint(ledger); step >= 0)
    refuse(directory, fmt::format("the checkpoint of step {} that {} records", step, ledger.string()), "");
}

void require_listed(const deck::Config& config, const fs::path& checkpoint, const fs::path& status_file) {
  const fs::path directory = deck::checkpoint_directory(config);
  if (checkpoint.empty() || checkpoint.parent_path() != directory || io::has_step_folders(directory)) return;
  refuse(directory, fmt::format("{}, which {} names", checkpoint.filename().string(), status_file.string()),
         fmt::format(", after {} is removed", status_file.string()));
}

}  // namespace nanotron::trainer
