#include "block_queue.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "io/files/durable_files.hpp"
#include "nanotron/base/error.hpp"
#include "nanotron/base/process.hpp"
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
       {.what = fmt::format("{} cannot be flushed to disk on host {}: {}", name_, host_name(), std::strerror(errno))});
}

PageBuffer PageBuffers::take(std::size_t bytes) {
  const std::scoped_lock lock(mutex_);
  const auto found = std::ranges::lower_bound(free_, bytes, {}, &PageBuffer::size);
  if (found == free_.end()) {
    if (!free_.empty()) free_.pop_back();
    return PageBuffer(bytes);
  }
  PageBuffer buffer = std::move(*found);
  free_.erase(found);
  return buffer;
}

void PageBuffers::give_back(PageBuffer&& buffer) {
  const std::scoped_lock lock(mutex_);
  free_.insert(std::ranges::lower_bound(free_, buffer.size(), {}, &PageBuffer::size), std::move(buffer));
}

void PageBuffers::release() {
  const std::scoped_lock lock(mutex_);
  free_.clear();
}

BlockQueue::BlockQueue(const std::filesystem::path& path, std::int64_t block_bytes, std::size_t max_buffered_bytes,
                       PageBuffers& memory)
    : file_(path, block_bytes),
      checker_(path, block_bytes),
      max_buffered_bytes_(max_buffered_bytes),
      memory_(&memory),
      thread_([this] { write_all(); }) {}

BlockQueue::~BlockQueue() {
  abandon();
  thread_.join();
}

void BlockQueue::abandon() {
  {
    const std::scoped_lock lock(mutex_);
    is_dropped_ = true;
    if (!failure_) failure_ = std::make_exception_ptr(Error(ExitCode::system_error, "the checkpoint is abandoned"));
  }
  changed_.notify_all();
}

std::span<std::byte> BlockQueue::memory(std::size_t bytes) {
  lent_.reset();
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return failure_ || lent_bytes_ == 0 || lent_bytes_ + bytes <= max_buffered_bytes_; });
    if (failure_) std::rethrow_exception(failure_);
    lent_bytes_ += bytes;
  }
  const auto give_back = [this, bytes](PageBuffer* buffer) {
    memory_->give_back(std::move(*buffer));
    delete buffer;
    {
      const std::scoped_lock lock(mutex_);
      lent_bytes_ -= bytes;
    }
    changed_.notify_all();
  };
  const std::shared_ptr<PageBuffer> buffer(new PageBuffer(memory_->take(bytes)), give_back);
  lent_ = buffer;
  return {buffer->data(), bytes};
}

void BlockQueue::put(std::int64_t position, std::span<const std::byte> blocks) {
  {
    const std::scoped_lock lock(mutex_);
    if (failure_) std::rethrow_exception(failure_);
    waiting_.push_back({position, blocks, lent_});
  }
  changed_.notify_all();
}

std::future<void> BlockQueue::close() {
  lent_.reset();
  {
    const std::scoped_lock lock(mutex_);
    is_closed_ = true;
  }
  changed_.notify_all();
  return written_.get_future();
}

// Whether there was one.
bool BlockQueue::write_next() {
  Waiting next;
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return is_dropped_ || is_closed_ || !waiting_.empty(); });
    if (is_dropped_ || waiting_.empty()) return false;
    next = std::move(waiting_.front());
    waiting_.pop_front();
  }
  HashedBlocks written{next.position, std::ssize(next.blocks), file_.write(next.position, next.blocks)};
  if (file_.is_direct()) {
    checker_.add(std::move(written));
  } else {
    in_cache_.push_back(std::move(written));
  }
  return true;
}

bool BlockQueue::is_abandoned() {
  const std::scoped_lock lock(mutex_);
  return is_dropped_;
}

void BlockQueue::write_all() try {
  while (write_next()) {
  }
  if (is_abandoned()) return written_.set_exception(failure_);
  file_.sync();
  for (HashedBlocks& blocks : in_cache_) checker_.add(std::move(blocks));
  checker_.finish();
  written_.set_value();
} catch (...) {
  std::deque<Waiting> lost;
  {
    const std::scoped_lock lock(mutex_);
    failure_ = std::current_exception();
    lost.swap(waiting_);
  }
  changed_.notify_all();
  written_.set_exception(failure_);
}

}  // namespace nanotron::io
