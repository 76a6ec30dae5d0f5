#include "system_calls.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cstring>

#include "nanotron/base/error.hpp"
#include "nanotron/base/files.hpp"

namespace nanotron::io {
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
         {.what = fmt::format("{} cannot take {} bytes more: {}", path.string(), end - begin, std::strerror(cause))});
}

}  // namespace nanotron::io
