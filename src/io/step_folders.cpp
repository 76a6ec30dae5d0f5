#include "step_folders.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string_view>

#include "nanotron/base/error.hpp"
#include "nanotron/io/checkpoint.hpp"

namespace nanotron::io {
namespace {

constexpr std::string_view prefix = "step_";

// The step whose half-written folder has this name, or whose old one that was being replaced; -1 for other names.
std::int64_t step_of_partial(std::string_view name) {
  if (!name.ends_with(partial_suffix)) return -1;
  name.remove_suffix(std::string_view(partial_suffix).size());
  if (name.ends_with(replaced_suffix)) name.remove_suffix(std::string_view(replaced_suffix).size());
  return step_of(name);
}

}  // namespace

std::int64_t step_of(std::string_view name) {
  if (name.size() < prefix.size() + 8 || name.substr(0, prefix.size()) != prefix) return -1;
  name.remove_prefix(prefix.size());
  std::int64_t step = -1;
  const auto [stop, error] = std::from_chars(name.data(), name.data() + name.size(), step);
  return error == std::errc() && stop == name.data() + name.size() ? step : -1;
}

StepFolders list_step_folders(const std::filesystem::path& directory) {
  StepFolders found;
  std::error_code error;
  if (!std::filesystem::exists(directory, error)) return found;
  auto entry = std::filesystem::directory_iterator(directory, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (step_of_partial(name) >= 0)
      found.partial.push_back(entry->path());
    else if (const std::int64_t step = step_of(name); step >= 0)
      found.steps.emplace_back(step, entry->path());
  }
  if (error)
    fail(ExitCode::system_error,
         {.what = "the checkpoint directory cannot be listed",
          .expected = "a folder that can be read",
          .found = error.message(),
          .where = directory.string(),
          .change = "correct checkpoint%directory or checkpoint%resume, or the folder's permissions"});
  std::sort(found.steps.rbegin(), found.steps.rend());
  return found;
}

std::optional<Absence> absence_of(const std::filesystem::path& folder) {
  namespace fs = std::filesystem;
  constexpr const char* name_one =
      "name a folder step_XXXXXXXX, a run or a folder of checkpoints with checkpoint%resume, or say 'auto'";
  std::error_code error;
  const fs::file_status status = fs::status(folder, error);
  if (status.type() == fs::file_type::not_found) return Absence{"there is no such folder", name_one};
  if (error == std::errc::too_many_symbolic_link_levels || error == std::errc::filename_too_long)
    return Absence{"there is no such folder: " + error.message(), name_one};
  const auto require_readable = [&] {
    if (!error) return;
    fail(ExitCode::system_error, {.what = fmt::format("checkpoint {} cannot be read", folder.string()),
                                  .found = error.message(),
                                  .change = "correct the permissions of the folder and of those above it"});
  };
  require_readable();
  if (!fs::is_directory(status)) return Absence{"it is a file, not a folder", name_one};
  if (fs::exists(folder / manifest_file_name, error)) return std::nullopt;
  require_readable();
  if (fs::exists(folder / checkpoint_file_name, error))
    return Absence{fmt::format("half-written: {} without {}", checkpoint_file_name, manifest_file_name),
                   "take an older checkpoint, or checkpoint%resume = 'auto', which does so"};
  require_readable();
  return Absence{fmt::format("there is no checkpoint in it: neither {} nor {}", checkpoint_file_name,
                             manifest_file_name),
                 name_one};
}

std::filesystem::path first_free(const std::filesystem::path& path, const std::string& word) {
  for (int n = 1;; ++n) {
    std::filesystem::path candidate = fmt::format("{}{}{}", path.string(), word, n);
    if (!std::filesystem::exists(std::filesystem::symlink_status(candidate))) return candidate;
  }
}

}  // namespace nanotron::io
