#pragma once

// One-dimensional datasets of a token file, read piece by piece. Where the file has hashes of their blocks, every block
// is compared with its hash each time it is read.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "nanotron/base/types.hpp"
#include "nanotron/data/files/hdf5.hpp"
#include "nanotron/data/files/read_only_file.hpp"

namespace nanotron::data {

/// Values of a dataset per hashed block: what this program writes, and what it reads.
inline constexpr index_t hash_block = 4096, smallest_hash_block = 64, largest_hash_block = 65536;

/// Unsigned integers of `width` bytes in memory; integers of other sizes or byte orders in the file are converted.
/// Errors are Error(data_error), or Error(system_error) where the system cannot read, and name file and dataset.
class StoredArray {
 public:
  StoredArray() = default;  // of a dataset that the file does not have
  /// Error for what hdf5::checked_shape refuses, for a dataset that is not 1-D, for values that were never written, and
  /// for more values than the file can hold. `disk` is the file that the dataset is in.
  StoredArray(hdf5::Dataset dataset, const std::string& name, int width, std::shared_ptr<const ReadOnlyFile> disk);
  /// Where such an array is, checked once; and the array there, which is not touched before it is read.
  struct Place {
    index_t size = -1;  // -1: there is none
    int width = 0;
    bool is_plain = false;
    std::int64_t offset = 0, unpacked_again = 0;
  };
  Place place() const { return exists() ? Place{size_, width_, is_plain_, offset_, unpacked_again_} : Place{}; }
  StoredArray(const Place& place, const std::string& name, const FileStatus& opened,
              std::shared_ptr<const ReadOnlyFile> disk);
  ~StoredArray();
  StoredArray(StoredArray&&) noexcept;
  StoredArray& operator=(StoredArray&&) noexcept;

  bool exists() const { return source_ != nullptr; }
  index_t size() const { return size_; }
  int width() const { return width_; }
  const std::string& name() const { return name_; }  // "/tokens"
  /// Contiguous in the file and in the type in memory, so that pread reads it without conversion.
  bool is_plain() const { return is_plain_; }
  /// Bytes that are unpacked to read a value that is not in memory; 0: none, or unpacked values stay in memory.
  std::int64_t unpacked_again() const { return unpacked_again_; }

  /// From now on every block of `block` values is compared with its hash: element i of `hashes` is block_hash of values
  /// [i block, (i+1) block), little-endian and of the array's width.
  void compare_with(StoredArray hashes, index_t block);
  bool is_compared() const { return hashes_ != nullptr; }
  Place place_of_hashes() const { return is_compared() ? hashes_->place() : Place{}; }

  struct Values {
    const char* data;  // valid until the next load() of any array on this thread
    index_t count;
  };
  /// Loads at least one, the first ones, of the values [first, first + count), count >= 1. Not collective; any thread.
  /// Allocates only in the first calls of a thread, never on the thread that opened the file. For blocks damaged on
  /// disk Error(data_error) that names the values; a read that fails or differs is repeated (read_block).
  Values load(index_t first, index_t count) const;

  /// visitor(values, index of the first of them - first), piece after piece.
  template <class Visitor>
  void for_each_piece(index_t first, index_t count, const Visitor& visitor) const {
    for (index_t at = 0; at < count;) {
      const Values piece = load(first + at, count - at);
      visitor(piece, at);
      at += piece.count;
    }
  }

  /// All of an array of width 8.
  std::vector<std::uint64_t> read_all() const;

  /// ReadOnlyFile::find_hole in the bytes of a plain array; begin counts from its first byte.
  ReadOnlyFile::Hole find_hole(std::int64_t smallest) const;

  /// The next read asks the disk again (BlockSource::drop_from_cache).
  void drop_from_cache() const { source_->drop_from_cache(size_ * width_, 0); }

  /// block_hash of each block of this many values.
  std::vector<std::uint64_t> hashes_of_blocks(index_t block) const;

 private:
  std::size_t piece_bytes() const;
  void read_compared(index_t first, std::span<char> bytes) const;
  void read_again(index_t block, std::span<char> bytes) const;
  std::string range_of(index_t block) const;
  [[noreturn]] void damaged(index_t block, std::uint64_t expected, std::uint64_t found) const;

  std::string name_, path_;
  index_t size_ = 0;
  int width_ = 0;
  bool is_plain_ = false;
  std::int64_t unpacked_again_ = 0;
  std::int64_t offset_ = 0;  // of a plain one in the file
  std::shared_ptr<const ReadOnlyFile> disk_;
  FileStatus opened_;
  std::unique_ptr<BlockSource> source_;  // of the values; positions in bytes of `width`
  std::unique_ptr<StoredArray> hashes_;
  index_t block_ = 0;
};

}  // namespace nanotron::data
