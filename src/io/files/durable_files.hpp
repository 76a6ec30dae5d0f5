#pragma once

// Changes of files and folders that are on disk when the call returns, or Error(system_error).

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

}  // namespace nanotron::io
