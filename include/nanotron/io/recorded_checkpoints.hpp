#pragma once

// What a checkpoint directory says of its checkpoints without a listing. One rank calls; Error(system_error) where the
// file system does not answer.

#include <filesystem>
#include <string>

namespace nanotron::io {

/// "step_00000100, which .../latest names": a checkpoint that was published, there or not. Empty: nothing says so.
std::string recorded_checkpoint(const std::filesystem::path& directory);

/// Whether a step folder is listed, whole or not.
bool has_step_folders(const std::filesystem::path& directory);

}  // namespace nanotron::io
