#pragma once

// Reads of blocks whose hash is known. A bit flip or failure on the way from disk is distinguished from file damage by
// reading again.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "nanotron/base/error.hpp"
#include "nanotron/data/files/open_files.hpp"

namespace nanotron::data {

/// Attributes of a file, without its content. Times in ns.
struct FileStatus {
  std::int64_t device = 0, inode = 0, bytes = 0, modified = 0, changed = 0;
  bool operator==(const FileStatus&) const = default;

  bool is_same_file(const FileStatus& other) const { return device == other.device && inode == other.inode; }
  /// Whether the file was written to in between. chmod or another link to the file do not count.
  bool is_unwritten_since(const FileStatus& before) const {
    return bytes == before.bytes && modified == before.modified;
  }
};

/// For a call that failed with this errno: data_error if there is no such file, else system_error.
ExitCode exit_code_of(int error);

/// Error(exit_code_of(errno)) with the system's message.
FileStatus status_of(const std::filesystem::path& path);
FileStatus status_of(int descriptor, const std::filesystem::path& path);
/// Empty if there is no such file; else as status_of().
std::optional<FileStatus> find_status(const std::filesystem::path& path);

/// Bytes that can be read again.
class BlockSource {
 public:
  virtual ~BlockSource() = default;
  virtual const std::string& name() const = 0;
  /// Error(data_error) at the end, Error(system_error) where the system reports one.
  virtual void read(void* target, std::int64_t bytes, std::int64_t position) const = 0;
  /// The next read of these bytes asks the disk or the network again, as far as the system follows the advice.
  virtual void drop_from_cache(std::int64_t bytes, std::int64_t position) const = 0;
};

/// XXH3-64 with seed 0.
std::uint64_t block_hash(std::span<const char> block);

/// Fills `block` with the bytes from `begin` on and returns their block_hash. A read that fails or gives a hash other
/// than `expected` is repeated, three reads in all. Then returns the hash if it was the same each time; throws
/// Error(system_error) naming host and bytes if a read failed or wrong hashes differed.
std::uint64_t read_block(const BlockSource& source, std::int64_t begin, std::span<char> block, std::uint64_t expected);

/// A file read by this process only, at any position and from any thread.
class ReadOnlyFile final : public BlockSource {
 public:
  /// Error(data_error) where there is no such file, Error(system_error) where it cannot be opened.
  explicit ReadOnlyFile(const std::filesystem::path& path);
  /// A file of a long list, of which another look knows this: it is opened when it is read, and Error(data_error) if
  /// the path leads to another file by then.
  ReadOnlyFile(const std::filesystem::path& path, const FileStatus& known, std::shared_ptr<OpenFiles> open_files);
  ~ReadOnlyFile() override;
  ReadOnlyFile(const ReadOnlyFile&) = delete;
  ReadOnlyFile& operator=(const ReadOnlyFile&) = delete;

  const std::string& name() const override { return name_; }
  void read(void* target, std::int64_t bytes, std::int64_t position) const override;
  void drop_from_cache(std::int64_t bytes, std::int64_t position) const override;

  /// Status of the open file, whatever its name refers to now; of a list, of the file that the name refers to.
  FileStatus status() const { return stays_open() ? status_of(descriptor_, name_) : status_of(name_); }
  bool stays_open() const { return open_files_ == nullptr; }
  const std::shared_ptr<OpenFiles>& open_files() const { return open_files_; }  // null: stays open
  /// The first hole of at least `smallest` bytes in the range, if the file system reports holes: bytes that were never
  /// written and read as zeros. Length 0: none.
  struct Hole {
    std::int64_t begin = 0, bytes = 0;
  };
  Hole find_hole(std::int64_t bytes, std::int64_t position, std::int64_t smallest) const;

 private:
  struct Descriptor;
  class Lease;

  int descriptor_ = -1;
  std::string name_;
  FileStatus known_;
  std::shared_ptr<OpenFiles> open_files_;
};

}  // namespace nanotron::data
