#pragma once

// Where HDF5 reads and writes the bytes of a file: a file driver of HDF5 (H5FDregister) over an interface of ours.

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "nanotron/data/hdf5.hpp"

namespace nanotron::io {

class ByteStore {
 public:
  virtual ~ByteStore() = default;
  virtual const std::string& name() const = 0;
  virtual std::int64_t bytes() const = 0;
  /// Exceptions of these become those of the call of HDF5 that needed the bytes.
  virtual void read(void* target, std::int64_t bytes, std::int64_t position) = 0;
  virtual void write(const void* source, std::int64_t bytes, std::int64_t position);  // Error(system_error): read-only
  virtual void resize(std::int64_t bytes);                                            // the same
};

/// Opens an existing file for reading. `store` must outlive it. Error(data_error) where it is no HDF5 file.
hdf5::File open_through(ByteStore& store);
/// A new file, of our layout: objects of 64 KiB and more begin at multiples of 1 MiB, format of HDF5 1.10.
/// Error(system_error).
hdf5::File create_through(ByteStore& store);

/// The bytes that HDF5 writes into a new file, kept in memory: its metadata and small values. What datasets hold that
/// are only allocated takes no memory.
class FileImage final : public ByteStore {
 public:
  explicit FileImage(std::string name) : name_(std::move(name)) {}

  const std::string& name() const override { return name_; }
  std::int64_t bytes() const override { return bytes_; }
  void read(void* target, std::int64_t bytes, std::int64_t position) override;  // 0 where nothing was written
  void write(const void* source, std::int64_t bytes, std::int64_t position) override;
  void resize(std::int64_t bytes) override { bytes_ = bytes; }

  /// What was written, by position: neither overlapping nor adjacent.
  const std::map<std::int64_t, std::vector<std::byte>>& extents() const { return extents_; }

 private:
  std::string name_;
  std::int64_t bytes_ = 0;
  std::map<std::int64_t, std::vector<std::byte>> extents_;
};

}  // namespace nanotron::io
