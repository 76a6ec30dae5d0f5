#include "nanotron/data/files/read_only_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>

#include "nanotron/base/error.hpp"
#include "nanotron/base/files.hpp"
#include "nanotron/base/process.hpp"
#include "nanotron/base/start_account.hpp"

namespace nanotron::data {

std::uint64_t block_hash(std::span<const char> block) { return XXH3_64bits(block.data(), block.size()); }

std::uint64_t read_block(const BlockSource& source, std::int64_t begin, std::span<char> block, std::uint64_t expected) {
  constexpr int attempts = 3;
  const auto bytes = static_cast<std::int64_t>(block.size());
  std::optional<std::uint64_t> wrong;
  std::string failure;
  for (int attempt = 0; attempt < attempts; ++attempt) {
    if (attempt > 0) source.drop_from_cache(bytes, begin);
    try {
      source.read(block.data(), bytes, begin);
    } catch (const Error& error) {
      failure = reason(error);
      continue;
    }
    const std::uint64_t hash = block_hash(block);
    if (hash == expected) return hash;
    if (wrong && *wrong != hash) failure = fmt::format("hash {:016x}, then {:016x}", *wrong, hash);
    wrong = hash;
  }
  if (failure.empty()) return *wrong;
  fail(ExitCode::system_error, {.what = fmt::format("bytes {} to {} of {} cannot be read on host {}, after {} tries",
                                                    begin, begin + bytes - 1, source.name(), host_name(), attempts),
                                .found = failure,
                                .change = "run again, on other nodes if it happens again"});
}

ReadOnlyFile::ReadOnlyFile(const std::filesystem::path& path)
    : descriptor_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)), name_(path.string()) {
  count_opened_file();
  if (descriptor_ >= 0) return;
  fail(exit_code_of(errno), {.what = fmt::format("{} cannot be opened: {}", name_, std::strerror(errno))});
}

ReadOnlyFile::ReadOnlyFile(const std::filesystem::path& path, const FileStatus& known,
                           std::shared_ptr<OpenFiles> open_files)
    : name_(path.string()), known_(known), open_files_(std::move(open_files)) {}

ReadOnlyFile::~ReadOnlyFile() {
  if (stays_open()) {
    ::close(descriptor_);
  } else {
    open_files_->descriptors.close(this);
  }
}

struct ReadOnlyFile::Descriptor {
  explicit Descriptor(const std::string& name) : number(::open(name.c_str(), O_RDONLY | O_CLOEXEC)) {
    count_opened_file();
    if (number < 0)
      fail(exit_code_of(errno), {.what = fmt::format("{} cannot be opened: {}", name, std::strerror(errno))});
  }
  ~Descriptor() { ::close(number); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  // Of the file that the list had.
  static std::shared_ptr<Descriptor> checked(const ReadOnlyFile& file) {
    auto opened = std::make_shared<Descriptor>(file.name_);
    const FileStatus here = status_of(opened->number, file.name_);
    if (here.is_same_file(file.known_) && here.bytes == file.known_.bytes) return opened;
    fail(ExitCode::data_error,
         {.what = "token file changed during the run",
          .expected = "the file that the path led to at the start: a long list is opened file by file",
          .found = "another file, or another size",
          .where = file.name_,
          .change = "restore the files that the run started with, and resume from the last checkpoint"});
  }

  int number;
};

// Keeps the file open as long as it lives.
class ReadOnlyFile::Lease {
 public:
  explicit Lease(const ReadOnlyFile& file) : number_(file.descriptor_) {
    if (file.stays_open()) return;
    held_ =
        file.open_files_->descriptors.get(&file, [&]() -> std::shared_ptr<void> { return Descriptor::checked(file); });
    number_ = static_cast<const Descriptor*>(held_.get())->number;
  }
  int number() const { return number_; }

 private:
  std::shared_ptr<void> held_;
  int number_;
};

void ReadOnlyFile::read(void* target, std::int64_t bytes, std::int64_t position) const {
  const Lease lease(*this);
  for (auto* to = static_cast<char*>(target); bytes > 0;) {
    const ssize_t got = ::pread(lease.number(), to, static_cast<std::size_t>(bytes), position);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      fail(got == 0 ? ExitCode::data_error : ExitCode::system_error,
           {.what = fmt::format("{} cannot be read at byte {}: {}", name_, position,
                                got == 0 ? "end of file" : std::strerror(errno))});
    }
    to += got;
    position += got;
    bytes -= got;
  }
}

void ReadOnlyFile::drop_from_cache(std::int64_t bytes, std::int64_t position) const {
  ::posix_fadvise(Lease(*this).number(), position, bytes, POSIX_FADV_DONTNEED);
}

ReadOnlyFile::Hole ReadOnlyFile::find_hole(std::int64_t bytes, std::int64_t position, std::int64_t smallest) const {
  const Lease lease(*this);
  const std::int64_t end = position + bytes;
  for (std::int64_t at = position; at < end;) {
    const std::int64_t hole = ::lseek(lease.number(), at, SEEK_HOLE);
    if (hole < 0 || hole >= end) return {};
    const std::int64_t data = ::lseek(lease.number(), hole, SEEK_DATA), last = data < 0 ? end : std::min(data, end);
    if (last - hole >= smallest) return {hole, last - hole};
    at = last;
  }
  return {};
}

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
