#include "step_folders.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <sstream>
#include <string_view>

#include "nanotron/base/error.hpp"
#include "nanotron/base/files.hpp"
#include "nanotron/io/checkpoint/checkpoint.hpp"
#include "nanotron/io/files/text_file.hpp"

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

std::filesystem::path newest_published(const std::filesystem::path& directory) {
  const std::filesystem::path link = directory / latest_name;
  if (files::kind_of_name(link) != files::Kind::link) return {};
  std::error_code error;
  const std::filesystem::path target = std::filesystem::read_symlink(link, error).filename();
  if (error && error != std::errc::no_such_file_or_directory)
    fail(ExitCode::system_error, {.what = fmt::format("{} cannot be read", link.string()), .found = error.message()});
  return step_of(target.string()) < 0 ? std::filesystem::path() : directory / target;
}

StepFolders list_step_folders(const std::filesystem::path& directory) {
  StepFolders found;
  const std::filesystem::path published = newest_published(directory);
  for (const std::filesystem::path& entry : files::entries_of(directory)) {
    const std::string name = entry.filename().string();
    if (step_of_partial(name) >= 0)
      found.partial.push_back(entry);
    else if (const std::int64_t step = step_of(name); step >= 0)
      found.steps.emplace_back(step, entry);
  }
  const auto is_published = [&](const auto& listed) { return listed.second.filename() == published.filename(); };
  if (!published.empty() && std::ranges::none_of(found.steps, is_published) && files::exists(published))
    fail(ExitCode::system_error,
         {.what = "incomplete listing of the checkpoint directory",
          .expected = published.filename().string() + ", which exists",
          .found = fmt::format("{} other step folders", found.steps.size()),
          .where = directory.string(),
          .change = "check the file system of the directory, then start again; nothing was moved"});
  std::sort(found.steps.rbegin(), found.steps.rend());
  return found;
}

std::optional<Absence> absence_of(const std::filesystem::path& folder) {
  namespace fs = std::filesystem;
  constexpr const char* name_one = "give a folder step_XXXXXXXX, a run or a folder of checkpoints";
  std::error_code error;
  static_cast<void>(fs::status(folder, error));
  if (error == std::errc::too_many_symbolic_link_levels || error == std::errc::filename_too_long)
    return Absence{"there is no such folder: " + error.message(), name_one};
  const files::Kind kind = files::kind_of(folder);
  if (kind == files::Kind::nothing) return Absence{"there is no such folder", name_one};
  if (kind != files::Kind::folder) return Absence{"it is a file, not a folder", name_one};
  if (files::exists(folder / manifest_file_name)) return std::nullopt;
  if (files::exists(folder / checkpoint_file_name))
    return Absence{fmt::format("half-written: {} without {}", checkpoint_file_name, manifest_file_name),
                   "give an older checkpoint, or the folder of all, whose newest complete one is used,"};
  return Absence{
      fmt::format("there is no checkpoint in it: neither {} nor {}", checkpoint_file_name, manifest_file_name),
      name_one};
}

std::filesystem::path first_free(const std::filesystem::path& path, const std::string& word) {
  for (int n = 1;; ++n) {
    std::filesystem::path candidate = fmt::format("{}{}{}", path.string(), word, n);
    if (files::kind_of_name(candidate) == files::Kind::nothing) return candidate;
  }
}

namespace fs = std::filesystem;

std::vector<std::int64_t> listed_known_good(const fs::path& directory) {
  std::vector<std::int64_t> steps;
  std::istringstream text(files::text_of(directory / known_good_name).value_or(""));
  for (std::int64_t step = 0; text >> step;)
    if (step >= 0) steps.push_back(step);
  return steps;
}

std::vector<std::int64_t> read_known_good(const fs::path& directory) {
  std::vector<std::int64_t> steps = listed_known_good(directory);
  std::erase_if(steps, [&](std::int64_t step) { return absence_of(step_folder(directory, step)).has_value(); });
  std::ranges::sort(steps);
  steps.erase(std::unique(steps.begin(), steps.end()), steps.end());
  return steps;
}

int write_known_good(const fs::path& directory, const std::vector<std::int64_t>& steps) {
  std::string text;
  for (const std::int64_t step : steps) text += fmt::format("{}\n", step);
  return replace_text(directory / known_good_name, text);
}

std::filesystem::path step_folder(const std::filesystem::path& directory, std::int64_t step) {
  return directory / fmt::format("step_{:08}", step);
}

}  // namespace nanotron::io
