#include "nanotron/io/files/run_lock.hpp"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string>
#include <thread>
#include <utility>

#include "nanotron/base/error.hpp"
#include "nanotron/base/files.hpp"
#include "nanotron/base/process.hpp"
#include "nanotron/base/timer.hpp"

namespace nanotron::io {
namespace {

std::string holder() {
  std::string text = fmt::format("host {}, process {}, since {:%Y-%m-%dT%H:%M:%SZ}", host_name(), ::getpid(),
                                 fmt::gmtime(std::time(nullptr)));
  for (const char* variable : {"SLURM_JOB_ID", "PBS_JOBID", "PJM_JOBID"})
    if (const char* job = std::getenv(variable)) text += fmt::format(", job {}", job);
  return text + "\n";
}

// What the file says, on one line.
std::string words_in(int descriptor) {
  std::array<char, 512> text{};
  const ssize_t got = ::pread(descriptor, text.data(), text.size(), 0);
  std::string words(text.data(), static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  words.resize(words.find_last_not_of(" \n") + 1);
  return words.empty() ? "another run" : words;
}

[[noreturn]] void cannot_write(const std::filesystem::path& path, const std::string& why) {
  fail(ExitCode::system_error, {.what = "the run directory cannot be written",
                                .found = why,
                                .where = path.string(),
                                .change = "correct run%output_dir or checkpoint%directory, or their permissions"});
}

}  // namespace

RunLock::RunLock(const std::filesystem::path& directory, Log& log, double patience) : file_(directory / "run.lock") {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) cannot_write(directory, error.message());
  descriptor_ = files::open_plain(file_, O_RDWR | O_CREAT);
  if (descriptor_ < 0) cannot_write(file_, files::why_not_plain(errno));
  try {
    take(patience, log);
  } catch (...) {
    ::close(descriptor_);
    throw;
  }
}

RunLock::~RunLock() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

RunLock::RunLock(RunLock&& other) noexcept
    : file_(std::move(other.file_)), descriptor_(std::exchange(other.descriptor_, -1)) {}

void RunLock::take(double patience, Log& log) {
  const double begin = wall_seconds();
  bool told = false;
  while (::flock(descriptor_, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno != EWOULDBLOCK) {
      log.warn("{}: no locks on this file system ({}): a second run is not prevented", file_.string(),
               std::strerror(errno));
      break;
    }
    if (wall_seconds() - begin >= patience)
      fail(ExitCode::system_error,
           {.what = "another run writes into this directory",
            .expected = "one run at a time",
            .found = words_in(descriptor_),
            .where = file_.string(),
            .change = "wait until it ends, or set another run%output_dir and checkpoint%directory; if that "
                      "run has certainly ended and its node is down, remove the file"});
    if (!std::exchange(told, true)) {
      log.warn("another run writes into {} ({}): waiting up to {:.0f} s for it to end", file_.parent_path().string(),
               words_in(descriptor_), patience);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  const std::string text = holder();
  if (::ftruncate(descriptor_, 0) != 0 ||
      ::pwrite(descriptor_, text.data(), text.size(), 0) != static_cast<ssize_t>(text.size()))
    cannot_write(file_, std::strerror(errno));
}

}  // namespace nanotron::io
