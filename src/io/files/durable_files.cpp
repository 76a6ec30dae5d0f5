#include "durable_files.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "nanotron/base/error.hpp"
#include "nanotron/base/files.hpp"

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

namespace {

// 0 if there is enough space, else errno.
int try_reserve(int descriptor, std::int64_t begin, std::int64_t bytes) {
  rlimit limit{};  // fallocate() does not check it where the file keeps its size
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
      static_cast<rlim_t>(begin + bytes) > limit.rlim_cur)
    return EFBIG;
  if (uninterrupted([&] { return ::fallocate(descriptor, FALLOC_FL_KEEP_SIZE, begin, bytes); }) == 0) return 0;
  if (errno != EOPNOTSUPP && errno != ENOSYS && errno != EINVAL) return errno;
  struct statvfs space {};
  if (::fstatvfs(descriptor, &space) != 0) return 0;
  return space.f_bavail < static_cast<std::uint64_t>(bytes) / space.f_frsize ? ENOSPC : 0;
}

}  // namespace

void reserve_space(const std::filesystem::path& path, std::int64_t begin, std::int64_t end) {
  const int descriptor = files::open_plain(path, O_WRONLY | O_CREAT);
  const int cause = descriptor < 0 ? errno : try_reserve(descriptor, begin, end - begin);
  if (descriptor >= 0) ::close(descriptor);
  if (cause != 0)
    fail(ExitCode::system_error,
         {.what = fmt::format("{} cannot grow by {} bytes: {}", path.string(), end - begin, std::strerror(cause))});
}

}  // namespace nanotron::io
