#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <filesystem>
#include <future>
#include <mutex>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "block_file.hpp"
#include "page_buffer.hpp"

namespace nanotron::io {

/// Memory for blocks that wait to be written, which is used again.
class PageBuffers {
 public:
  /// Of at least `bytes`: the smallest that was given back and is large enough; else a new one instead of the largest.
  PageBuffer take(std::size_t bytes);
  void give_back(PageBuffer&& buffer);
  void release();  // to the system

 private:
  std::mutex mutex_;
  std::vector<PageBuffer> free_;  // from the smallest
};

/// A BlockFile that a thread writes while its owner assembles the next blocks. No communication.
class BlockQueue {
 public:
  /// room: bytes that may wait; put() waits for more. `memory` is borrowed.
  BlockQueue(const std::filesystem::path& path, std::int64_t block_bytes, std::size_t room, PageBuffers& memory);
  /// Blocks that wait are dropped.
  ~BlockQueue();

  /// Copies whole blocks. Throws what an earlier block met.
  void put(std::int64_t position, std::span<const std::byte> blocks);
  /// No more blocks come. The future is ready when all are on disk, or has the error of the first that is not. Once.
  std::future<void> close();

  /// When the future of close() is ready.
  const BlockFile& file() const { return file_; }

 private:
  struct Waiting {
    std::int64_t position;
    std::size_t bytes;
    PageBuffer buffer;
  };
  void write_all();

  BlockFile file_;
  std::size_t room_;
  PageBuffers* memory_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Waiting> waiting_;  // the first is being written
  std::size_t waiting_bytes_ = 0;
  bool is_closed_ = false, is_dropped_ = false;
  std::exception_ptr failure_;
  std::promise<void> written_;
  std::thread thread_;  // last: it begins when all else is there
};

}  // namespace nanotron::io
