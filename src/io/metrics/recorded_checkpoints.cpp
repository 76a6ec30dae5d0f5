#include "nanotron/io/metrics/recorded_checkpoints.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "io/checkpoint/step_folders.hpp"
#include "metrics_table.hpp"
#include "nanotron/base/error.hpp"
#include "nanotron/base/files.hpp"

namespace nanotron::io {

std::string recorded_checkpoint(const std::filesystem::path& directory) {
  if (const std::filesystem::path published = newest_published(directory); !published.empty())
    return fmt::format("{}, which {} names", published.filename().string(), (directory / latest_name).string());
  const std::vector<std::int64_t> known = listed_known_good(directory);
  if (known.empty()) return "";
  return fmt::format("the checkpoint of step {} that {} names", std::ranges::max(known),
                     (directory / known_good_name).string());
}

bool has_step_folders(const std::filesystem::path& directory) { return !list_step_folders(directory).steps.empty(); }

std::int64_t newest_recorded_checkpoint(const std::filesystem::path& path) {
  if (files::kind_of_name(path) != files::Kind::file) return -1;
  try {
    const hdf5::File file = hdf5::open_read_only(path);
    if (!hdf5::exists(file.id(), start_checkpoints)) return -1;
    const MetricsTable table(file.id(), start_checkpoints, start_checkpoint_columns, path);
    const std::vector<std::int64_t> steps = table.integers(checkpoint_step_column);
    return steps.empty() ? -1 : std::ranges::max(steps);
  } catch (const Error& error) {
    if (error.exit_code() == ExitCode::system_error) throw;
    return -1;  // damaged: it says nothing
  }
}

}  // namespace nanotron::io
