#pragma once

// The steps of the known good checkpoints of a directory, for the next start of the run: the file known_good in it, a
// line each. Without it, or where it is damaged, none are known. One rank calls.

#include <cstdint>
#include <filesystem>
#include <vector>

namespace nanotron::io {

/// Those that still have a manifest, ascending.
std::vector<std::int64_t> read_known_good(const std::filesystem::path& directory);

/// 0, or the errno.
int write_known_good(const std::filesystem::path& directory, const std::vector<std::int64_t>& steps);

}  // namespace nanotron::io
