#pragma once

// What the files of a run record about its checkpoints, without a listing. One rank calls; Error(system_error) if the
// file system does not answer.

#include <cstdint>
#include <filesystem>
#include <string>

namespace nanotron::io {

/// "step_00000100, which .../latest names": a checkpoint that was published, existing or not. Empty: no record of one.
std::string recorded_checkpoint(const std::filesystem::path& directory);

/// Whether a step folder is listed, whole or not.
bool has_step_folders(const std::filesystem::path& directory);

/// The last step of the checkpoints that the starts of a metrics file record; -1 if there are none, or the file is
/// incomplete.
std::int64_t newest_recorded_checkpoint(const std::filesystem::path& path);

}  // namespace nanotron::io
