#include "nanotron/base/log.hpp"

#include <cerrno>
#include <cstring>
#include <string>

#include "nanotron/base/error.hpp"

namespace nanotron {

void Log::open(const std::filesystem::path& file) {
  if (!speaks_) return;
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
  if (file_) {
    std::fwrite(line.data(), 1, line.size(), file_.get());
    std::fflush(file_.get());
  }
}

}  // namespace nanotron
