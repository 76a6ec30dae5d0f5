#include "block_queue.hpp"

#include <algorithm>
#include <cstring>

#include "nanotron/base/flight_recorder.hpp"

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

BlockQueue::BlockQueue(const std::filesystem::path& path, std::int64_t block_bytes, std::size_t room,
                       PageBuffers& memory)
    : file_(path, block_bytes), room_(room), memory_(&memory), thread_([this] { write_all(); }) {}

BlockQueue::~BlockQueue() {
  {
    const std::scoped_lock lock(mutex_);
    is_dropped_ = true;
  }
  changed_.notify_all();
  thread_.join();
  for (Waiting& dropped : waiting_) memory_->give_back(std::move(dropped.buffer));
}

void BlockQueue::put(std::int64_t position, std::span<const std::byte> blocks) {
  const NotedRegion region("write");
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return failure_ || waiting_.empty() || waiting_bytes_ + blocks.size() <= room_; });
    if (failure_) std::rethrow_exception(failure_);
  }
  Waiting next{position, blocks.size(), memory_->take(blocks.size())};
  std::memcpy(next.buffer.data(), blocks.data(), blocks.size());
  {
    const std::scoped_lock lock(mutex_);
    waiting_bytes_ += next.bytes;
    waiting_.push_back(std::move(next));
  }
  changed_.notify_all();
}

std::future<void> BlockQueue::close() {
  {
    const std::scoped_lock lock(mutex_);
    is_closed_ = true;
  }
  changed_.notify_all();
  return written_.get_future();
}

void BlockQueue::write_all() try {
  while (true) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return is_dropped_ || is_closed_ || !waiting_.empty(); });
    if (is_dropped_) return;
    if (waiting_.empty()) break;
    const Waiting& first = waiting_.front();  // stays where it is: a deque that grows at its end
    lock.unlock();
    file_.write(first.position, {first.buffer.data(), first.bytes});
    lock.lock();
    waiting_bytes_ -= first.bytes;
    memory_->give_back(std::move(waiting_.front().buffer));
    waiting_.pop_front();
    lock.unlock();
    changed_.notify_all();
  }
  file_.sync();
  written_.set_value();
} catch (...) {
  {
    const std::scoped_lock lock(mutex_);
    failure_ = std::current_exception();
  }
  changed_.notify_all();
  written_.set_exception(failure_);
}

}  // namespace nanotron::io
