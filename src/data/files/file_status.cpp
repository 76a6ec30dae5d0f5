#include "nanotron/data/files/file_status.hpp"

#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "nanotron/base/whole_path.hpp"

namespace nanotron::data {
namespace {

FileStatus checked(int result, const struct stat& s, const std::filesystem::path& path) {
  if (result != 0)
    fail(exit_code_of(errno),
         {.what = "the token file cannot be read", .found = std::strerror(errno), .where = whole_path(path)});
  const auto ns = [](const timespec& t) { return static_cast<std::int64_t>(t.tv_sec) * 1'000'000'000 + t.tv_nsec; };
  return {static_cast<std::int64_t>(s.st_dev), static_cast<std::int64_t>(s.st_ino), s.st_size, ns(s.st_mtim),
          ns(s.st_ctim)};
}

}  // namespace

ExitCode exit_code_of(int error) {
  const bool absent = error == ENOENT || error == ENOTDIR || error == ELOOP || error == ENAMETOOLONG;
  return absent ? ExitCode::data_error : ExitCode::system_error;
}

FileStatus status_of(const std::filesystem::path& path) {
  struct stat s {};
  return checked(::stat(path.c_str(), &s), s, path);
}

FileStatus status_of(int descriptor, const std::filesystem::path& path) {
  struct stat s {};
  return checked(::fstat(descriptor, &s), s, path);
}

std::optional<FileStatus> find_status(const std::filesystem::path& path) {
  struct stat s {};
  const int result = ::stat(path.c_str(), &s);
  if (result != 0 && exit_code_of(errno) == ExitCode::data_error) return std::nullopt;
  return checked(result, s, path);
}

}  // namespace nanotron::data
