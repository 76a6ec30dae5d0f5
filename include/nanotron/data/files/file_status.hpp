#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "nanotron/base/error.hpp"

namespace nanotron::data {

/// What the system says of a file, without its content. Times in ns.
struct FileStatus {
  std::int64_t device = 0, inode = 0, bytes = 0, modified = 0, changed = 0;
  bool operator==(const FileStatus&) const = default;

  bool is_same_file(const FileStatus& other) const { return device == other.device && inode == other.inode; }
  /// Whether the file was written to in between. chmod or another link to the file do not count.
  bool is_unwritten_since(const FileStatus& before) const {
    return bytes == before.bytes && modified == before.modified;
  }
};

/// Of a call that failed with this errno: data_error where there is no such file, else system_error.
ExitCode exit_code_of(int error);

/// Error(exit_code_of(errno)) with the words of the system.
FileStatus status_of(const std::filesystem::path& path);
FileStatus status_of(int descriptor, const std::filesystem::path& path);
/// Nothing where there is no such file; else as status_of().
std::optional<FileStatus> find_status(const std::filesystem::path& path);

}  // namespace nanotron::data
