#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <filesystem>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "nanotron/data/files/read_only_file.hpp"

namespace nanotron::io {

/// Consecutive blocks of a file and the hash of each.
struct HashedBlocks {
  std::int64_t position = 0, bytes = 0;
  std::vector<std::uint64_t> hashes{};
};

/// Fills `block`, number `number` of a file of this name, with the bytes from `begin` on. Read three times where the
/// hash is another one: Error(data_error) that names block and bytes, Error(system_error) where a read fails or differs
/// each time. One process.
void require_block(const data::BlockSource& source, const std::string& name, std::int64_t number, std::int64_t begin,
                   std::span<char> block, std::uint64_t expected);

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
  std::string name_;
  std::int64_t block_bytes_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<HashedBlocks> waiting_;
  bool is_closed_ = false, is_dropped_ = false;
  std::exception_ptr failure_;
  std::thread thread_;  // last: it begins when all else is there
};

}  // namespace nanotron::io
