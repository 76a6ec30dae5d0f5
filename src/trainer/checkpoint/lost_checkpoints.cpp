#include "lost_checkpoints.hpp"

#include <fmt/format.h>

#include <string>

#include "nanotron/base/error.hpp"
#include "nanotron/io/metrics/recorded_checkpoints.hpp"

namespace nanotron::trainer {
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
