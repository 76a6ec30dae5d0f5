#include "step_folders.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string_view>

#include "nanotron/base/error.hpp"

namespace nanotron::io {
namespace {

constexpr std::string_view prefix = "step_";

// The number in "step_00000100"; -1 for other names.
std::int64_t step_of(std::string_view name) {
  if (name.size() < prefix.size() + 8 || name.substr(0, prefix.size()) != prefix) return -1;
  name.remove_prefix(prefix.size());
  std::int64_t step = -1;
  const auto [stop, error] = std::from_chars(name.data(), name.data() + name.size(), step);
  return error == std::errc() && stop == name.data() + name.size() ? step : -1;
}

}  // namespace

StepFolders list_step_folders(const std::filesystem::path& directory) {
  StepFolders found;
  std::error_code error;
  if (!std::filesystem::exists(directory, error)) return found;
  auto entry = std::filesystem::directory_iterator(directory, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name.starts_with(prefix) && name.ends_with(partial_suffix))
      found.partial.push_back(entry->path());
    else if (const std::int64_t step = step_of(name); step >= 0)
      found.steps.emplace_back(step, entry->path());
  }
  if (error)
    fail(ExitCode::system_error, {"the checkpoint directory cannot be listed", "", error.message(),
                                  directory.string(), ""});
  std::sort(found.steps.rbegin(), found.steps.rend());
  return found;
}

}  // namespace nanotron::io
