#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <filesystem>
#include <mutex>
#include <thread>
#include <vector>

#include "nanotron/data/read_only_file.hpp"

namespace nanotron::io {

/// Consecutive blocks of a file and the hash of each.
struct HashedBlocks {
  std::int64_t position = 0, bytes = 0;
  std::vector<std::uint64_t> hashes{};
};

/// A thread that reads blocks back from the disk and compares them with their hashes. No communication.
class BlockChecker {
 public:
  BlockChecker(const std::filesystem::path& path, std::int64_t block_bytes);
  /// Blocks that wait are dropped.
  ~BlockChecker();

  /// Blocks that are no longer only in a cache.
  void add(HashedBlocks blocks);
  /// Waits for all blocks. Throws the first failure: Error(data_error) for another hash, Error(system_error) where a
  /// read fails.
  void finish();

 private:
  void check_all();
  void check(const HashedBlocks& blocks, std::vector<char>& block);

  data::ReadOnlyFile file_;
  std::int64_t block_bytes_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<HashedBlocks> waiting_;
  bool is_closed_ = false, is_dropped_ = false;
  std::exception_ptr failure_;
  std::thread thread_;  // last: it begins when all else is there
};

}  // namespace nanotron::io
