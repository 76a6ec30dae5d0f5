#include "block_queue.hpp"

#include <algorithm>
#include <cstring>

#include "nanotron/base/error.hpp"

namespace nanotron::io {

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
    if (!failure_) failure_ = std::make_exception_ptr(Error(ExitCode::system_error, "the checkpoint is given up"));
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
