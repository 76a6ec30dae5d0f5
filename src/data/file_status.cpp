#include "nanotron/data/file_status.hpp"

#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "nanotron/base/error.hpp"

namespace nanotron::data {
namespace {

FileStatus checked(int result, const struct stat& s, const std::filesystem::path& path) {
  if (result != 0)
    fail(ExitCode::data_error,
         {.what = "the token file cannot be read", .found = std::strerror(errno), .where = path.string()});
  const auto ns = [](const timespec& t) { return static_cast<std::int64_t>(t.tv_sec) * 1'000'000'000 + t.tv_nsec; };
  return {static_cast<std::int64_t>(s.st_dev), static_cast<std::int64_t>(s.st_ino), s.st_size, ns(s.st_mtim),
          ns(s.st_ctim)};
}

}  // namespace

FileStatus status_of(const std::filesystem::path& path) {
  struct stat s {};
  return checked(::stat(path.c_str(), &s), s, path);
}

FileStatus status_of(int descriptor, const std::filesystem::path& path) {
  struct stat s {};
  return checked(::fstat(descriptor, &s), s, path);
}

}  // namespace nanotron::data
