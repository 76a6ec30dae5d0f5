#include "copy_folder.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "io/files/durable_files.hpp"
#include "nanotron/base/error.hpp"
#include "nanotron/base/files.hpp"
#include "nanotron/base/host.hpp"

namespace nanotron::io {
namespace {

namespace fs = std::filesystem;

std::string with_host(std::string directory, const std::string& host) {
  for (std::size_t at = 0; (at = directory.find("%h", at)) != std::string::npos; at += host.size())
    directory.replace(at, 2, host);
  return directory;
}

// Why nobody else can have made or can write what lies in the folder; empty: it is so.
std::string fault_of(const fs::path& folder) {
  struct stat status {};
  if (::lstat(folder.c_str(), &status) != 0) return std::strerror(errno);
  if (!S_ISDIR(status.st_mode)) return S_ISLNK(status.st_mode) ? "a symbolic link" : "no folder";
  if (status.st_uid != ::geteuid()) return fmt::format("of user {}", status.st_uid);
  if ((status.st_mode & 077) != 0) return fmt::format("mode {:o}", status.st_mode & 07777);
  return "";
}

void make_private(const fs::path& folder) {
  if (::mkdir(folder.c_str(), 0700) == 0) return;
  const int cause = errno;
  const std::string found = cause == EEXIST ? fault_of(folder) : std::strerror(cause);
  if (!found.empty())
    fail(ExitCode::system_error, {.what = fmt::format("a folder for copies cannot be used on host {}", host_name()),
                                  .expected = "a folder of this user's, mode 700",
                                  .found = found,
                                  .where = folder.string(),
                                  .change = "remove it, or set another checkpoint%neighbour_directory"});
}

}  // namespace

std::string PieceName::text() const {
  return fmt::format("step_{:08}.{:016x}.rank_{}_of_{}", step, generation, rank, ranks);
}

std::optional<PieceName> PieceName::parse(const std::string& text) {
  PieceName name;
  long long step = 0, rank = 0, ranks = 0;
  unsigned long long generation = 0;
  if (std::sscanf(text.c_str(), "step_%lld.%llx.rank_%lld_of_%lld", &step, &generation, &rank, &ranks) != 4)
    return std::nullopt;
  name = {.step = step, .generation = generation, .rank = rank, .ranks = ranks};
  return name.text() == text && rank >= 0 && rank < ranks ? std::optional(name) : std::nullopt;
}

CopyFolder::CopyFolder(const std::string& directory, const std::string& host, const std::string& run)
    : user_(fs::path(with_host(directory, host)) / fmt::format("nanotron_hpc-{}", ::geteuid())), path_(user_ / run) {}

bool CopyFolder::is_ours() const { return fault_of(user_).empty() && fault_of(path_).empty(); }

void CopyFolder::create() const {
  std::error_code error;
  fs::create_directories(user_.parent_path(), error);
  make_private(user_);
  make_private(path_);
}

std::vector<PieceName> CopyFolder::list() const {
  std::vector<PieceName> found;
  if (!files::exists(path_) || !is_ours()) return found;
  for (const fs::path& entry : files::entries_of(path_)) {
    if (entry.extension() != ".table" || files::kind_of_name(entry) != files::Kind::file) continue;
    const auto name = PieceName::parse(entry.stem().string());
    if (name && files::kind_of_name(blocks_of(*name)) == files::Kind::file) found.push_back(*name);
  }
  return found;
}

template <class F>
void CopyFolder::remove_where(const F& goes) const {
  if (!is_ours()) return;
  std::error_code error;
  std::vector<fs::path> old;
  for (auto entry = fs::directory_iterator(path_, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    if (goes(entry->path().filename().string())) old.push_back(entry->path());
  }
  for (const fs::path& file : old)
    if (file.extension() != ".blocks") fs::remove(file, error);  // a piece without its table is none
  for (const fs::path& file : old) fs::remove(file, error);
  ::rmdir(path_.c_str());
  ::rmdir(user_.c_str());
}

void CopyFolder::remove(std::uint64_t generation) const {
  remove_where(
      [&](const std::string& file) { return file.find(fmt::format(".{:016x}.", generation)) != std::string::npos; });
}

void CopyFolder::remove_all_but(std::uint64_t generation) const {
  remove_where(
      [&](const std::string& file) { return file.find(fmt::format(".{:016x}.", generation)) == std::string::npos; });
}

void CopyFolder::remove_all() const {
  remove_where([](const std::string&) { return true; });
}

void create_private_file(const fs::path& path, std::int64_t bytes) {
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  const bool good = descriptor >= 0 && uninterrupted([&] { return ::ftruncate(descriptor, bytes); }) == 0;
  const int cause = errno;
  if (descriptor >= 0) ::close(descriptor);
  if (!good)
    fail(ExitCode::system_error,
         {.what = fmt::format("{} cannot be made on host {}: {}", path.string(), host_name(), std::strerror(cause))});
}

}  // namespace nanotron::io
