#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

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

}  // namespace nanotron::io
