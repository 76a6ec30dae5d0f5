#pragma once

#include <filesystem>
#include <string>

namespace nanotron::io {

/// A file read by this process alone, at any position.
class ReadOnlyFile {
 public:
  /// Error(data_error) where there is no such file, Error(system_error) where it cannot be opened.
  explicit ReadOnlyFile(const std::filesystem::path& path);
  ~ReadOnlyFile();
  ReadOnlyFile(const ReadOnlyFile&) = delete;
  ReadOnlyFile& operator=(const ReadOnlyFile&) = delete;

  const std::string& name() const { return name_; }
  /// Error(data_error) at the end of the file, Error(system_error) where the system reports one.
  void read(void* target, std::int64_t bytes, std::int64_t position) const;
  /// The next read of these bytes asks the disk or the network again, as far as the system follows the advice.
  void forget(std::int64_t bytes, std::int64_t position) const;

 private:
  int descriptor_;
  std::string name_;
};

}  // namespace nanotron::io
