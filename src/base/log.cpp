#include "nanotron/base/log.hpp"

#include <cerrno>
#include <cstring>
#include <string>

#include "nanotron/base/error.hpp"

namespace nanotron {

void Log::open(const std::filesystem::path& file) {
  if (!speaks_) return;
  path_ = file;
  file_.reset(std::fopen(file.c_str(), "ae"));
  if (!file_) {
    fail(ExitCode::system_error, {.what = "the log file cannot be opened",
                                  .expected = "a file that can be written",
                                  .found = std::strerror(errno),
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
  const bool good = std::fwrite(line.data(), 1, line.size(), file_.get()) == line.size() &&
                    std::fflush(file_.get()) == 0;
  if (good) return;
  const int cause = errno;
  std::clearerr(file_.get());
  if (std::exchange(told_of_failure_, true)) return;
  fmt::print(stderr, "warning: {} cannot be written: {}; lines are missing in it from here on\n",
             path_.string(), std::strerror(cause));
}

}  // namespace nanotron
