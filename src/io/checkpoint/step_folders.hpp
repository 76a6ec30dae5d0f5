#pragma once

// The step folders of a checkpoint directory. One rank calls.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/files/durable_files.hpp"

namespace nanotron::io {

inline constexpr const char* latest_name = "latest";  // a link to the checkpoint that was published last

/// The number in "step_00000100"; -1 for other names.
std::int64_t step_of(std::string_view name);

struct StepFolders {
  std::vector<std::pair<std::int64_t, std::filesystem::path>> steps;  // newest first
  std::vector<std::filesystem::path> partial;                         // half-written
};

/// What the link `latest` of a checkpoint directory names; empty where there is none.
std::filesystem::path newest_published(const std::filesystem::path& directory);

/// Empty when there is no such directory. Throws Error(system_error) when it cannot be listed, or when the listing
/// lacks a step folder that is there and that `latest` names.
StepFolders list_step_folders(const std::filesystem::path& directory);

/// Why a folder holds no checkpoint, and what the user can do "with" what named it.
struct Absence {
  std::string reason, change;
};

/// Nothing when the folder has a manifest.
std::optional<Absence> absence_of(const std::filesystem::path& folder);

/// The first of <path><word>1, <path><word>2, ... that does not exist.
std::filesystem::path first_free(const std::filesystem::path& path, const std::string& word);

// The steps of the known good checkpoints of a directory, for the next start of the run: the file known_good in it, a
// line each. Without it, or where it is damaged, none are known; Error(system_error) where it cannot be read. One rank
// calls.

inline constexpr const char* known_good_name = "known_good";

/// Those that the file names, whether they are there or not.
std::vector<std::int64_t> listed_known_good(const std::filesystem::path& directory);
/// Those that still have a manifest, ascending.
std::vector<std::int64_t> read_known_good(const std::filesystem::path& directory);

/// 0, or the errno.
int write_known_good(const std::filesystem::path& directory, const std::vector<std::int64_t>& steps);

}  // namespace nanotron::io
