#include "block_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "io/files/system_calls.hpp"
#include "nanotron/base/error.hpp"
#include "nanotron/base/host.hpp"
#include "page_buffer.hpp"

namespace nanotron::io {
namespace {

// Of a disk or a network; a full disk stays full.
bool may_pass(int cause) { return cause == EIO || cause == ETIMEDOUT || cause == EAGAIN || cause == ESTALE; }

std::size_t whole_pages(std::span<const std::byte> bytes, std::int64_t position) {
  const bool at_page = reinterpret_cast<std::uintptr_t>(bytes.data()) % page_bytes == 0 &&
                       position % static_cast<std::int64_t>(page_bytes) == 0;
  return at_page ? bytes.size() / page_bytes * page_bytes : 0;
}

}  // namespace

BlockFile::BlockFile(const std::filesystem::path& path, std::int64_t block_bytes)
    : descriptor_(::open(path.c_str(), O_WRONLY | O_NOFOLLOW | O_CLOEXEC)),
      direct_(::open(path.c_str(), O_WRONLY | O_NOFOLLOW | O_CLOEXEC | O_DIRECT)),
      name_(path.string()),
      block_bytes_(block_bytes) {
  if (descriptor_ < 0)
    fail(ExitCode::system_error,
         {.what = fmt::format("{} cannot be opened on host {}: {}", name_, host_name(), std::strerror(errno))});
}

BlockFile::~BlockFile() {
  if (direct_ >= 0) ::close(direct_);
  ::close(descriptor_);
}

// 0, or the errno of what could not be written from `position` on; both move on with what was.
int BlockFile::write_some(std::span<const std::byte>& left, std::int64_t& position) {
  while (!left.empty()) {
    const std::size_t pages = direct_ >= 0 ? whole_pages(left, position) : 0;
    const ssize_t put = pages > 0 ? ::pwrite(direct_, left.data(), pages, position)
                                  : ::pwrite(descriptor_, left.data(), left.size(), position);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0 && errno == EINVAL && pages > 0) {  // this file system asks for more than pages
      ::close(std::exchange(direct_, -1));
      continue;
    }
    if (put <= 0) return put < 0 ? errno : ENOSPC;
    left = left.subspan(static_cast<std::size_t>(put));
    position += put;
  }
  return 0;
}

std::vector<std::uint64_t> BlockFile::write(std::int64_t position, std::span<const std::byte> blocks) {
  std::vector<std::uint64_t> hashes;
  for (std::size_t at = 0; at < blocks.size(); at += static_cast<std::size_t>(block_bytes_)) {
    const auto block = blocks.subspan(at, std::min(blocks.size() - at, static_cast<std::size_t>(block_bytes_)));
    hashes.push_back(XXH3_64bits(block.data(), block.size()));
    hashes_.emplace_back((position + static_cast<std::int64_t>(at)) / block_bytes_, hashes.back());
  }
  constexpr int attempts = 3;
  int cause = 0;
  for (int attempt = 0; attempt < attempts; ++attempt) {
    cause = write_some(blocks, position);
    if (cause == 0) return hashes;
    if (!may_pass(cause)) break;
  }
  fail(ExitCode::system_error,
       {.what = fmt::format("bytes {} to {} of {} cannot be written on host {}: {}", position,
                            position + std::ssize(blocks) - 1, name_, host_name(), std::strerror(cause))});
}

void BlockFile::sync() {
  if (uninterrupted([&] { return ::fsync(descriptor_); }) == 0 || errno == EINVAL || errno == ENOTSUP) return;
  fail(ExitCode::system_error,
       {.what = fmt::format("{} cannot be brought to disk on host {}: {}", name_, host_name(), std::strerror(errno))});
}

}  // namespace nanotron::io
