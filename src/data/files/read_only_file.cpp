#include "nanotron/data/files/read_only_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "nanotron/base/error.hpp"

namespace nanotron::data {

ReadOnlyFile::ReadOnlyFile(const std::filesystem::path& path)
    : descriptor_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)), name_(path.string()) {
  if (descriptor_ >= 0) return;
  fail(exit_code_of(errno), {.what = fmt::format("{} cannot be opened: {}", name_, std::strerror(errno))});
}

ReadOnlyFile::~ReadOnlyFile() { ::close(descriptor_); }

void ReadOnlyFile::read(void* target, std::int64_t bytes, std::int64_t position) const {
  for (auto* to = static_cast<char*>(target); bytes > 0;) {
    const ssize_t got = ::pread(descriptor_, to, static_cast<std::size_t>(bytes), position);
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

void ReadOnlyFile::forget(std::int64_t bytes, std::int64_t position) const {
  ::posix_fadvise(descriptor_, position, bytes, POSIX_FADV_DONTNEED);
}

ReadOnlyFile::Hole ReadOnlyFile::find_hole(std::int64_t bytes, std::int64_t position, std::int64_t smallest) const {
  const std::int64_t end = position + bytes;
  for (std::int64_t at = position; at < end;) {
    const std::int64_t hole = ::lseek(descriptor_, at, SEEK_HOLE);
    if (hole < 0 || hole >= end) return {};
    const std::int64_t data = ::lseek(descriptor_, hole, SEEK_DATA), last = data < 0 ? end : std::min(data, end);
    if (last - hole >= smallest) return {hole, last - hole};
    at = last;
  }
  return {};
}

}  // namespace nanotron::data
