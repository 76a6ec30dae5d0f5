#include "nanotron/io/files/run_status.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <map>
#include <sstream>
#include <string_view>

#include "nanotron/base/error.hpp"
#include "nanotron/base/files.hpp"
#include "nanotron/io/files/text_file.hpp"

namespace nanotron::io {
namespace {

const char* name_of(RunState state) {
  switch (state) {
    case RunState::starting:
      return "starting";
    case RunState::running:
      return "running";
    case RunState::finished:
      return "finished";
    case RunState::held:
      return "held";
    case RunState::failed:
      return "failed";
    default:
      return "stopped";
  }
}

// By key; empty where there is not a regular file.
std::map<std::string, std::string> read(const std::filesystem::path& file) {
  std::map<std::string, std::string> lines;
  std::istringstream in(files::text_of(file).value_or(""));
  for (std::string line; std::getline(in, line);) {
    const std::size_t end = line.find(" = ");
    if (end != std::string::npos) lines.emplace(line.substr(0, end), line.substr(end + 3));
  }
  return lines;
}

double seconds_of(const std::string& text) {
  double seconds = 0.0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  return error == std::errc() && std::isfinite(seconds) ? std::max(seconds, 0.0) : 0.0;
}

}  // namespace

RunStatus::RunStatus(std::filesystem::path file, std::string output_dir, std::string directory, std::int64_t steps,
                     Log& log)
    : file_(log.is_writer() ? std::move(file) : std::filesystem::path()),
      output_dir_(std::move(output_dir)),
      directory_(std::move(directory)),
      steps_(steps),
      log_(log) {
  if (file_.empty()) return;
  auto before = read(file_);
  if (before["directory"] == directory_ && before["state"] != name_of(RunState::finished)) {
    checkpoint_ = before["checkpoint"];
    checkpoint_seconds_ = seconds_of(before["checkpoint_seconds"]);
  }
}

void RunStatus::write(RunState state, std::int64_t step) {
  if (file_.empty()) return;
  const std::string text = fmt::format(
      "state = {}\nstep = {}\nsteps = {}\noutput_dir = {}\ndirectory = {}\ncheckpoint = {}\n"
      "checkpoint_seconds = {:.3f}\n",
      name_of(state), step, steps_, output_dir_, directory_, checkpoint_, checkpoint_seconds_);
  const int cause = replace_text(file_, text);
  if (cause == 0 || has_warned_) return;
  has_warned_ = true;
  log_.warn("{} cannot be written: {}; until then, job scripts do not know the state of this run", file_.string(),
            std::strerror(cause));
}

void RunStatus::add_checkpoint(std::int64_t step, const std::filesystem::path& folder, double seconds) {
  checkpoint_seconds_ = seconds;
  add_copy(step, folder);
}

void RunStatus::add_copy(std::int64_t step, const std::filesystem::path& folder) {
  checkpoint_ = folder.string();
  write(RunState::running, step);
}

void mark_failed(const std::filesystem::path& file, int exit_code, const std::string& message) try {
  if (file.empty()) return;
  std::map<std::string, std::string> lines = read(file);
  const std::string& state = lines["state"];
  if (state != name_of(RunState::starting) && state != name_of(RunState::running)) return;
  lines["state"] = name_of(RunState::failed);
  lines["exit_code"] = std::to_string(exit_code);
  lines["error"] = message.substr(0, message.find('\n'));
  constexpr std::string_view prefix = "error: ";
  if (const auto at = lines["error"].find(prefix); at != std::string::npos) lines["error"].erase(at, prefix.size());
  std::string text;
  for (const auto& [key, value] : lines) text += fmt::format("{} = {}\n", key, value);
  replace_text(file, text);
} catch (const Error&) {  // the run ends for another reason, which is told
}

}  // namespace nanotron::io
