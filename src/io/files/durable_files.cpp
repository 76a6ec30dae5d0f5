#include "durable_files.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "nanotron/base/error.hpp"
#include "nanotron/base/files.hpp"
#include "system_calls.hpp"

namespace nanotron::io {

namespace fs = std::filesystem;

namespace {

[[noreturn]] void system_failure(const std::string& what) {
  fail(ExitCode::system_error, {.what = fmt::format("writing a checkpoint: {}: {}", what, std::strerror(errno))});
}

}  // namespace

void sync_to_disk(const fs::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) system_failure(path.string());
  const int status = uninterrupted([&] { return ::fsync(descriptor); });
  const int cause = errno;
  ::close(descriptor);
  errno = cause;
  if (status != 0 && cause != EINVAL && cause != ENOTSUP) system_failure(path.string());
}

void write_durably(const fs::path& path, const std::string& text) {
  const int descriptor = files::open_plain(path, O_WRONLY | O_CREAT | O_TRUNC);
  if (descriptor < 0) system_failure(path.string());
  const char* from = text.data();
  std::size_t left = text.size();
  while (left > 0) {
    const ssize_t put = ::write(descriptor, from, left);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) break;
    from += put;
    left -= static_cast<std::size_t>(put);
  }
  const bool good = left == 0 && uninterrupted([&] { return ::fsync(descriptor); }) == 0;
  const int cause = errno;
  ::close(descriptor);
  errno = cause;
  if (!good) system_failure(path.string());
}

void rename_or_fail(const fs::path& from, const fs::path& to) {
  if (std::rename(from.c_str(), to.c_str()) != 0)
    system_failure(fmt::format("renaming {} to {}", from.string(), to.string()));
}

void replace_folder(const fs::path& with, const fs::path& old) {
  if (::renameat2(AT_FDCWD, with.c_str(), AT_FDCWD, old.c_str(), RENAME_EXCHANGE) != 0) {
    const fs::path aside = old.string() + replaced_suffix + partial_suffix;
    std::error_code ignored;
    fs::remove_all(aside, ignored);
    rename_or_fail(old, aside);
    rename_or_fail(with, old);
    fs::remove_all(aside, ignored);
    return;
  }
  std::error_code ignored;
  fs::remove_all(with, ignored);
}

}  // namespace nanotron::io
