#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "nanotron/data/files/byte_store.hpp"

namespace nanotron::io {

/// The bytes that HDF5 writes into a new file, kept in memory: its metadata and small values. Datasets that are only
/// allocated take no memory.
class FileImage final : public hdf5::ByteStore {
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
