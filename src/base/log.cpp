#include "nanotron/base/log.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "nanotron/base/error.hpp"
#include "nanotron/base/files.hpp"

namespace nanotron {
namespace {

// Opened without waiting: a pipe that nobody reads would block the run forever. Null, with errno, for one and for a
// symbolic link.
std::FILE* open_to_append(const std::filesystem::path& file) {
  const int descriptor =
      ::open(file.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
  struct stat status {};
  if (descriptor < 0) return nullptr;
  if (::fstat(descriptor, &status) == 0 && !S_ISFIFO(status.st_mode) && ::fcntl(descriptor, F_SETFL, O_APPEND) == 0) {
    if (std::FILE* const stream = ::fdopen(descriptor, "a")) return stream;
  } else {
    errno = S_ISFIFO(status.st_mode) ? ENXIO : errno;
  }
  const int cause = errno;
  ::close(descriptor);
  errno = cause;
  return nullptr;
}

}  // namespace

void Log::open(const std::filesystem::path& file) {
  if (!speaks_) return;
  path_ = file;
  file_.reset(open_to_append(file));
  if (!file_) {
    fail(ExitCode::system_error, {.what = "the log file cannot be opened",
                                  .expected = "a regular file with write permission, not a link",
                                  .found = files::why_not_plain(errno),
                                  .where = file.string(),
                                  .change = "check run%output_dir and its permissions"});
  }
}

void Log::write(Level level, std::string_view text) {
  std::string line;
  if (level == Level::warning) line = "warning: ";
  if (level == Level::error) line = fmt::format("[rank {}] ", rank_);
  line += text;
  line += '\n';
  if (level != Level::info || !quiet_) {
    std::FILE* console = level == Level::error ? stderr : stdout;
    std::fwrite(line.data(), 1, line.size(), console);
    std::fflush(console);
  }
  if (file_) write_to_file(line);
}

void Log::write_to_file(std::string_view line) {
  const bool good =
      std::fwrite(line.data(), 1, line.size(), file_.get()) == line.size() && std::fflush(file_.get()) == 0;
  if (good) return;
  const int cause = errno;
  std::clearerr(file_.get());
  if (std::exchange(told_of_failure_, true)) return;
  fmt::print(stderr, "warning: {} cannot be written: {}; later lines are missing from it\n", path_.string(),
             std::strerror(cause));
}

}  // namespace nanotron
