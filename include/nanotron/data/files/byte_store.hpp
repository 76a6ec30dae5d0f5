#pragma once

// Where HDF5 reads and writes the bytes of a file: a file driver of HDF5 (H5FDregister) over an interface of ours. All
// files of the programs are opened through it. HDF5 keeps a file that it could not close, and ends the process by a
// signal when it tries again at exit: FileStore keeps a failed write for require_written(), and HDF5's close succeeds.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "nanotron/data/files/hdf5.hpp"

namespace nanotron::hdf5 {

class ByteStore {
 public:
  virtual ~ByteStore() = default;
  virtual const std::string& name() const = 0;
  virtual std::int64_t bytes() const = 0;
  /// An exception of these functions is rethrown by the HDF5 call that needed the bytes.
  virtual void read(void* target, std::int64_t bytes, std::int64_t position) = 0;
  virtual void write(const void* source, std::int64_t bytes, std::int64_t position);  // Error(system_error): read-only
  virtual void resize(std::int64_t bytes);                                            // the same
};

/// Opens an existing file for reading. `store` must outlive it. Error(data_error) if it is not an HDF5 file.
File open_through(ByteStore& store);
/// Creates a file in our layout: objects of 64 KiB and more begin at multiples of 1 MiB, format of HDF5 1.10.
/// Error(system_error). `store` must outlive it.
File create_through(ByteStore& store);

enum class Access { read, update, create };
/// A file in HDF5's default layout; it keeps the store alive. Errors as above.
File open_through(const std::shared_ptr<ByteStore>& store, Access access);

/// A file on disk, for one thread. A failed write is remembered for require_written(), and all later ones are
/// discarded: HDF5 never sees a failed write, which it would not survive.
class FileStore final : public ByteStore {
 public:
  /// Access::read follows links and opens any file; the others open only a regular file of this name, no link, and
  /// `create` empties it. Error(data_error) if a file to read does not exist, else Error(system_error).
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
  int failure_ = 0;  // errno of the first failed write, resize or close; 0: none
};

}  // namespace nanotron::hdf5
