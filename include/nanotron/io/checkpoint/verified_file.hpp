#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "nanotron/data/files/byte_store.hpp"
#include "nanotron/io/checkpoint/manifest.hpp"

namespace nanotron::data {
class ReadOnlyFile;
}

namespace nanotron::io {

/// A file whose bytes are compared with the hashes of its manifest as this process reads them, one block after
/// another: what a disk, the network or this host's cache does to a read is found.
class VerifiedFile final : public hdf5::ByteStore {
 public:
  /// Error(data_error) where there is no such file, Error(system_error) where it cannot be opened.
  VerifiedFile(const std::filesystem::path& path, Manifest manifest);
  ~VerifiedFile() override;
  VerifiedFile(const VerifiedFile&) = delete;
  VerifiedFile& operator=(const VerifiedFile&) = delete;

  const std::string& name() const override;
  std::int64_t bytes() const override { return manifest_.bytes; }

  /// Reads `bytes` bytes from `position` on. A block that cannot be read or has another hash is read again, three times
  /// in all; then Error(system_error) that names bytes and host.
  void read(void* target, std::int64_t bytes, std::int64_t position) override;

 private:
  void load(std::int64_t block);

  std::unique_ptr<data::ReadOnlyFile> file_;
  Manifest manifest_;
  std::vector<char> block_;  // the one read last
  std::int64_t loaded_ = -1;
};

}  // namespace nanotron::io
