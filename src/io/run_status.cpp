#include "nanotron/io/run_status.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fstream>

namespace nanotron::io {
namespace {

constexpr std::string_view checkpoint_key = "checkpoint = ";

const char* name_of(RunState state) {
  switch (state) {
    case RunState::starting:
      return "starting";
    case RunState::running:
      return "running";
    case RunState::finished:
      return "finished";
    default:
      return "stopped";
  }
}

std::string last_checkpoint(const std::filesystem::path& file) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with(checkpoint_key)) return line.substr(checkpoint_key.size());
  }
  return {};
}

bool replace(const std::filesystem::path& file, const std::string& text) {
  const std::filesystem::path beside = file.string() + ".new";
  std::ofstream out(beside);
  out << text;
  out.close();
  std::error_code error;
  if (out) std::filesystem::rename(beside, file, error);
  return out && !error;
}

}  // namespace

RunStatus::RunStatus(std::filesystem::path file, std::int64_t steps, Log& log)
    : file_(log.speaks() ? std::move(file) : std::filesystem::path()), steps_(steps), log_(log) {
  if (!file_.empty()) checkpoint_ = last_checkpoint(file_);
}

void RunStatus::write(RunState state, std::int64_t step) {
  if (file_.empty()) return;
  errno = 0;
  if (replace(file_, fmt::format("state = {}\nstep = {}\nsteps = {}\n{}{}\n", name_of(state), step, steps_,
                                 checkpoint_key, checkpoint_))) {
    return;
  }
  log_.warn("{} cannot be written: {}; a job script will not know how this run ended", file_.string(),
            std::strerror(errno));
  file_.clear();
}

void RunStatus::add_checkpoint(std::int64_t step, const std::filesystem::path& folder) {
  checkpoint_ = fmt::format("{} {}", step, folder.string());
  write(RunState::running, step);
}

}  // namespace nanotron::io
