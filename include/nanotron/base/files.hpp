#pragma once

// Looks at files. A look that the system cannot answer is an error, never an absence: only ENOENT and ENOTDIR say that
// nothing has a name. All functions throw Error(system_error) for any other errno that comes three times.

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
/// Whether both lead to the same file or folder; false where one of them leads nowhere.
bool is_same(const std::filesystem::path& a, const std::filesystem::path& b);
/// Nothing where the path leads nowhere.
std::optional<std::int64_t> bytes_of(const std::filesystem::path& path);
/// The entries of a folder; empty where the path leads nowhere.
std::vector<std::filesystem::path> entries_of(const std::filesystem::path& folder);

/// Opens a file of a run, and no other: a descriptor, or -1 with errno where the name is a symbolic link (ELOOP), leads
/// to not a regular file (EINVAL), or cannot be opened. Never blocks. `flags` as of open(2); O_CREAT makes it for
/// all.
int open_plain(const std::filesystem::path& path, int flags);
/// The words for an errno of open_plain().
std::string why_not_plain(int error);
/// The text of a file of a run, at most `most` bytes; nothing where not a regular file has the name.
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
