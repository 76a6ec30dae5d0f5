#pragma once

// Changes of files and folders that are on disk when the call returns, or Error(system_error).

#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <string>

namespace nanotron::io {

/// Endings of the names of folders that are being written, and of ones that were replaced.
inline constexpr const char* partial_suffix = ".partial";
inline constexpr const char* replaced_suffix = ".replaced";

/// fsync() of a file or a directory.
void sync_to_disk(const std::filesystem::path& path);
/// A new file, or new contents of an old one.
void write_durably(const std::filesystem::path& path, const std::string& text);
/// Not yet on disk.
void rename_or_fail(const std::filesystem::path& from, const std::filesystem::path& to);
/// Replaces the folder `old` by `with`: in one atomic step if the file system can, so that `old` is good at any time.
void replace_folder(const std::filesystem::path& with, const std::filesystem::path& old);

/// Repeats a system call while signals interrupt it (EINTR). Returns its status.
template <class Call>
int uninterrupted(const Call& call) {
  int status = 0;
  do status = call();
  while (status != 0 && errno == EINTR);
  return status;
}

/// Reserves disk space for the bytes [begin, end) of a file; creates the file if needed and keeps its size. A
/// full disk, a quota or a limit is thus found here, in one process and outside of HDF5, which handles failed
/// writes badly (1.10 hangs or crashes when it closes the file). Throws Error(system_error).
void reserve_space(const std::filesystem::path& path, std::int64_t begin, std::int64_t end);

}  // namespace nanotron::io
