#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <filesystem>
#include <future>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "block_checker.hpp"
#include "nanotron/io/blocks/block_exchange.hpp"
#include "page_buffer.hpp"

namespace nanotron::io {

/// This process' end of a file that several processes write in whole blocks. No communication. Where the file system
/// allows, whole blocks pass by its cache (O_DIRECT): no copy, no lock that writers of one file share, and what is read
/// back comes from the disk.
class BlockFile {
 public:
  /// Opens an existing file. Error(system_error).
  BlockFile(const std::filesystem::path& path, std::int64_t block_bytes);
  ~BlockFile();
  BlockFile(const BlockFile&) = delete;
  BlockFile& operator=(const BlockFile&) = delete;

  /// Hashes the blocks as they are in memory, then writes them; directly where they begin at a page. A write that fails
  /// is repeated, three times in all; then Error(system_error) that names bytes and host. Returns the hashes.
  std::vector<std::uint64_t> write(std::int64_t position, std::span<const std::byte> blocks);
  /// Brings what was written to disk (fsync). Error(system_error).
  void sync();

  /// Whether whole pages pass by the cache.
  bool is_direct() const { return direct_ >= 0; }

  /// Number and XXH3-64 of each block written here.
  const std::vector<std::pair<std::int64_t, std::uint64_t>>& hashes() const { return hashes_; }

 private:
  int write_some(std::span<const std::byte>& left, std::int64_t& position);

  int descriptor_;
  int direct_;  // a descriptor of the same file; -1: no direct I/O
  std::string name_;
  std::int64_t block_bytes_;
  std::vector<std::pair<std::int64_t, std::uint64_t>> hashes_;
};

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

/// A BlockFile that a thread writes while its owner assembles the next blocks, and another thread reads back. No
/// communication.
class BlockQueue final : public BlockSink {
 public:
  /// max_buffered_bytes: bytes to lend at a time; memory() waits for more. `memory` is borrowed.
  BlockQueue(const std::filesystem::path& path, std::int64_t block_bytes, std::size_t max_buffered_bytes,
             PageBuffers& memory);
  /// Blocks that wait are dropped.
  ~BlockQueue() override;

  /// Throws what an earlier block met.
  std::span<std::byte> memory(std::size_t bytes) override;
  void put(std::int64_t position, std::span<const std::byte> blocks) override;
  /// memory() and put() throw from now on, and no more blocks are written. Any thread.
  void abandon();
  /// No more blocks come. The future is ready when all are on disk and have been read back, or has the error of the
  /// first that is not. Once.
  std::future<void> close();

  /// When the future of close() is ready.
  const BlockFile& file() const { return file_; }

 private:
  struct Waiting {
    std::int64_t position;
    std::span<const std::byte> blocks;
    std::shared_ptr<void> memory;  // keeps it lent
  };
  void write_all();
  bool write_next();
  bool is_abandoned();

  BlockFile file_;
  BlockChecker checker_;
  std::size_t max_buffered_bytes_;
  PageBuffers* memory_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t lent_bytes_ = 0;
  std::deque<Waiting> waiting_;
  std::shared_ptr<void> lent_;            // by the last memory()
  std::vector<HashedBlocks> in_cache_{};  // to be read back after sync
  bool is_closed_ = false, is_dropped_ = false;
  std::exception_ptr failure_;
  std::promise<void> written_;
  std::thread thread_;  // last: it begins when all else is there
};

}  // namespace nanotron::io
