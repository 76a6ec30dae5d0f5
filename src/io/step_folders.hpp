#pragma once

// The step folders of a checkpoint directory. One rank calls.

#include <cstdint>
#include <filesystem>
#include <utility>
#include <vector>

namespace nanotron::io {

inline constexpr const char* partial_suffix = ".partial";

struct StepFolders {
  std::vector<std::pair<std::int64_t, std::filesystem::path>> steps;  // newest first
  std::vector<std::filesystem::path> partial;                         // half-written
};

/// Empty when there is no such directory. Throws Error(system_error) when it cannot be listed.
StepFolders list_step_folders(const std::filesystem::path& directory);

}  // namespace nanotron::io
