#include "nanotron/base/files.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "nanotron/base/error.hpp"
#include "nanotron/base/process.hpp"
#include "nanotron/base/start_account.hpp"

namespace nanotron::files {
namespace {

namespace fs = std::filesystem;

constexpr int attempts = 3;

bool says_nothing(int error) { return error == ENOENT || error == ENOTDIR; }

[[noreturn]] void no_answer(const fs::path& path, int error) {
  fail(
      ExitCode::system_error,
      {.what = fmt::format("the file system cannot look up {}", path.string()),
       .found = std::strerror(error),
       .where = "host " + host_name(),
       .change =
           "check the file system and the permissions of the parent folders, then start again; the file is not assumed "
           "to be missing"});
}

// look() gives 0 or an errno. False: nothing has the name.
template <class Look>
bool answered(const fs::path& path, const Look& look) {
  int error = 0;
  for (int attempt = 0; attempt < attempts; ++attempt) {
    error = look();
    if (error == 0 || says_nothing(error)) return error == 0;
  }
  no_answer(path, error);
}

bool look_at(const fs::path& path, struct stat& status, int flags) {
  return answered(path, [&] { return ::fstatat(AT_FDCWD, path.c_str(), &status, flags) == 0 ? 0 : errno; });
}

Kind kind_of_mode(mode_t mode) {
  return S_ISREG(mode) ? Kind::file : S_ISDIR(mode) ? Kind::folder : S_ISLNK(mode) ? Kind::link : Kind::other;
}

Kind kind(const fs::path& path, int flags) {
  struct stat status {};
  return look_at(path, status, flags) ? kind_of_mode(status.st_mode) : Kind::nothing;
}

// 0 or an errno.
int read_text(int descriptor, std::size_t most, std::string& text) {
  text.assign(most, '\0');
  std::size_t bytes = 0;
  for (ssize_t got = 1; got != 0 && bytes < most;) {
    got = ::pread(descriptor, text.data() + bytes, most - bytes, static_cast<off_t>(bytes));
    if (got < 0 && errno != EINTR) return errno;
    bytes += static_cast<std::size_t>(std::max<ssize_t>(got, 0));
  }
  text.resize(bytes);
  return 0;
}

}  // namespace

Kind kind_of(const fs::path& path) { return kind(path, 0); }
Kind kind_of_name(const fs::path& path) { return kind(path, AT_SYMLINK_NOFOLLOW); }

bool is_same(const fs::path& a, const fs::path& b) {
  struct stat of_a {
  }, of_b{};
  return look_at(a, of_a, 0) && look_at(b, of_b, 0) && of_a.st_dev == of_b.st_dev && of_a.st_ino == of_b.st_ino;
}

std::optional<std::int64_t> bytes_of(const fs::path& path) {
  struct stat status {};
  return look_at(path, status, 0) ? std::optional<std::int64_t>(status.st_size) : std::nullopt;
}

std::vector<fs::path> entries_of(const fs::path& folder) {
  std::error_code error;
  if (!files::exists(folder)) return {};
  for (int attempt = 0; attempt < attempts; ++attempt) {
    std::vector<fs::path> found;
    auto entry = fs::directory_iterator(folder, error);
    for (; !error && entry != fs::directory_iterator(); entry.increment(error)) found.push_back(entry->path());
    if (!error) return found;
  }
  no_answer(folder, error.value());
}

int open_plain(const fs::path& path, int flags) {
  count_opened_file();
  const int descriptor = ::open(path.c_str(), flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
  if (descriptor < 0) return -1;
  struct stat status {};
  const int cause = ::fstat(descriptor, &status) != 0 ? errno : S_ISREG(status.st_mode) ? 0 : EINVAL;
  if (cause == 0) return descriptor;
  ::close(descriptor);
  errno = cause;
  return -1;
}

std::string why_not_plain(int error) {
  if (error == EINVAL || error == ENXIO) return "not a regular file";
  return error == ELOOP ? "a symbolic link" : std::strerror(error);
}

std::optional<std::string> text_of(const fs::path& path, std::size_t most) {
  if (kind_of_name(path) != Kind::file) return std::nullopt;
  std::string text;
  const bool is_there = answered(path, [&] {
    const int descriptor = open_plain(path, O_RDONLY);
    if (descriptor < 0) return errno;
    const int error = read_text(descriptor, most, text);
    ::close(descriptor);
    return error;
  });
  return is_there ? std::optional(std::move(text)) : std::nullopt;
}

}  // namespace nanotron::files
