#pragma once

// Queries of the file system. A query that fails is an error, not an absent file: only ENOENT and ENOTDIR mean that
// there is no such name. All functions throw Error(system_error) for any other errno that comes three times.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace nanotron::files {

enum class Kind { nothing, file, folder, link, other };

/// What a path leads to, through links.
Kind kind_of(const std::filesystem::path& path);
/// What the name itself is: Kind::link for a symbolic link, also for one that leads nowhere.
Kind kind_of_name(const std::filesystem::path& path);

inline bool exists(const std::filesystem::path& path) { return kind_of(path) != Kind::nothing; }
/// Whether both lead to the same file or folder; false if one of them leads nowhere.
bool is_same(const std::filesystem::path& a, const std::filesystem::path& b);
/// Empty if the path leads nowhere.
std::optional<std::int64_t> bytes_of(const std::filesystem::path& path);
/// The entries of a folder; empty if the path leads nowhere.
std::vector<std::filesystem::path> entries_of(const std::filesystem::path& folder);

/// Opens a regular file of a run without following links: a descriptor, or -1 with errno ELOOP (the name is a symbolic
/// link), EINVAL (not a regular file) or that of open(2). Never blocks. `flags` as in open(2); O_CREAT creates it with
/// mode 0666.
int open_plain(const std::filesystem::path& path, int flags);
/// The message for an errno of open_plain().
std::string why_not_plain(int error);
/// The text of a file of a run, at most `most` bytes; empty if the name is not a regular file.
std::optional<std::string> text_of(const std::filesystem::path& path, std::size_t most = std::size_t{1} << 20);

}  // namespace nanotron::files

namespace nanotron {

/// A path of a deck or a command line for a message: relative ones begin at the folder that the program was started in.
inline std::string whole_path(const std::filesystem::path& path) {
  std::error_code no_folder;
  const std::filesystem::path whole = std::filesystem::absolute(path, no_folder);
  return no_folder ? path.string() : whole.lexically_normal().string();
}

}  // namespace nanotron
