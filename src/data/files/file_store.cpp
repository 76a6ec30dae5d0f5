#include "nanotron/data/files/byte_store.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "nanotron/base/error.hpp"
#include "nanotron/base/files.hpp"
#include "nanotron/base/start_account.hpp"
#include "nanotron/data/files/read_only_file.hpp"

namespace nanotron::hdf5 {
namespace {

int open_for(Access access, const std::filesystem::path& path) {
  if (access == Access::read) {
    count_opened_file();
    return ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  }
  return files::open_plain(path, access == Access::update ? O_RDWR : O_RDWR | O_CREAT | O_TRUNC);
}

}  // namespace

FileStore::FileStore(const std::filesystem::path& path, Access access)
    : name_(path.string()), descriptor_(open_for(access, path)) {
  if (descriptor_ < 0)
    nanotron::fail(access == Access::read ? data::exit_code_of(errno) : ExitCode::system_error,
                   {.what = fmt::format("{} cannot be opened: {}", name_, std::strerror(errno))});
  try {
    bytes_ = data::status_of(descriptor_, path).bytes;
  } catch (...) {
    ::close(descriptor_);
    throw;
  }
}

FileStore::~FileStore() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

// Zeros past the end: HDF5 reads what it gave addresses to and nobody wrote yet.
void FileStore::read(void* target, std::int64_t bytes, std::int64_t position) {
  for (auto* to = static_cast<char*>(target); bytes > 0;) {
    const ssize_t got = ::pread(descriptor_, to, static_cast<std::size_t>(bytes), position);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0)
      nanotron::fail(ExitCode::system_error,
                     {.what = fmt::format("{} cannot be read at byte {}: {}", name_, position, std::strerror(errno))});
    if (got == 0) return static_cast<void>(std::fill_n(to, bytes, '\0'));
    to += got;
    position += got;
    bytes -= got;
  }
}

void FileStore::write(const void* source, std::int64_t bytes, std::int64_t position) {
  bytes_ = std::max(bytes_, position + bytes);
  for (const auto* from = static_cast<const char*>(source); bytes > 0 && failure_ == 0;) {
    const ssize_t put = ::pwrite(descriptor_, from, static_cast<std::size_t>(bytes), position);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) failure_ = put < 0 ? errno : ENOSPC;
    from += put;
    position += put;
    bytes -= put;
  }
}

void FileStore::resize(std::int64_t bytes) {
  bytes_ = bytes;
  while (failure_ == 0 && ::ftruncate(descriptor_, bytes) != 0) {
    if (errno != EINTR) failure_ = errno;
  }
}

void FileStore::require_written() const {
  if (failure_ != 0)
    nanotron::fail(ExitCode::system_error,
                   {.what = fmt::format("{} cannot be written: {}", name_, std::strerror(failure_))});
}

void FileStore::close() {
  if (::close(std::exchange(descriptor_, -1)) != 0 && failure_ == 0) failure_ = errno;
  require_written();
}

}  // namespace nanotron::hdf5
