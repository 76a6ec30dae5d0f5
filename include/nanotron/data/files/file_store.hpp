#pragma once

#include <filesystem>
#include <string>

#include "nanotron/data/files/byte_store.hpp"

namespace nanotron::hdf5 {

/// A file on disk, for one thread. A write that fails is kept for require_written(), and all later ones go nowhere:
/// HDF5 meets no failed write, which it does not survive.
class FileStore final : public ByteStore {
 public:
  /// Access::read follows links and opens any file; the others open a plain file of this name and no link, and
  /// `create` empties it. To read one that is not there is an Error(data_error), all else an Error(system_error).
  FileStore(const std::filesystem::path& path, Access access);
  ~FileStore() override;
  FileStore(const FileStore&) = delete;
  FileStore& operator=(const FileStore&) = delete;

  const std::string& name() const override { return name_; }
  std::int64_t bytes() const override { return bytes_; }
  void read(void* target, std::int64_t bytes, std::int64_t position) override;
  void write(const void* source, std::int64_t bytes, std::int64_t position) override;
  void resize(std::int64_t bytes) override;

  /// Error(system_error) if anything could not be written so far.
  void require_written() const;
  /// Closes the descriptor, after HDF5 closed the file; then as require_written().
  void close();

 private:
  std::string name_;
  int descriptor_ = -1;
  std::int64_t bytes_ = 0;
  int failure_ = 0;  // errno of the first write
};

}  // namespace nanotron::hdf5
