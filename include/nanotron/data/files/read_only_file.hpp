#pragma once

#include <filesystem>
#include <string>

#include "nanotron/data/files/block_read.hpp"
#include "nanotron/data/files/file_status.hpp"

namespace nanotron::data {

/// A file read by this process only, at any position and from any thread.
class ReadOnlyFile final : public BlockSource {
 public:
  /// Error(data_error) where there is no such file, Error(system_error) where it cannot be opened.
  explicit ReadOnlyFile(const std::filesystem::path& path);
  ~ReadOnlyFile() override;
  ReadOnlyFile(const ReadOnlyFile&) = delete;
  ReadOnlyFile& operator=(const ReadOnlyFile&) = delete;

  const std::string& name() const override { return name_; }
  void read(void* target, std::int64_t bytes, std::int64_t position) const override;
  void forget(std::int64_t bytes, std::int64_t position) const override;

  /// Of the open file, whatever its name refers to now.
  FileStatus status() const { return status_of(descriptor_, name_); }
  /// Where the first hole of at least `smallest` bytes within these begins and its length, as far as the file system
  /// reports holes: bytes that were never written, and read as zeros. Length 0: none.
  struct Hole {
    std::int64_t begin = 0, bytes = 0;
  };
  Hole find_hole(std::int64_t bytes, std::int64_t position, std::int64_t smallest) const;

 private:
  int descriptor_;
  std::string name_;
};

}  // namespace nanotron::data
