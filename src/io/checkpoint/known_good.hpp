#pragma once

// The steps of the known good checkpoints of a directory, for the next start of the run: the file known_good in it, a
// line each. Without it, or where it is damaged, none are known; Error(system_error) where it cannot be read. One rank
// calls.

#include <cstdint>
#include <filesystem>
#include <vector>

namespace nanotron::io {

inline constexpr const char* known_good_name = "known_good";

/// Those that the file names, whether they are there or not.
std::vector<std::int64_t> listed_known_good(const std::filesystem::path& directory);
/// Those that still have a manifest, ascending.
std::vector<std::int64_t> read_known_good(const std::filesystem::path& directory);

/// 0, or the errno.
int write_known_good(const std::filesystem::path& directory, const std::vector<std::int64_t>& steps);

}  // namespace nanotron::io
