#pragma once

// Small files of text beside a run: deck.nml, the status file.

#include <filesystem>
#include <string>

namespace nanotron::io {

/// Writes `text` to "<path>.tmp" and renames it: the old file stays until the new one is whole. Whatever has that name
/// (a link, a pipe) is removed, never followed or waited for. Returns 0 or the errno.
int replace_text(const std::filesystem::path& path, const std::string& text);

/// The same, on disk when it returns. Error(system_error).
void replace_text_durably(const std::filesystem::path& path, const std::string& text);

/// Appends `text` to a regular file, which is created if it does not exist; no link is followed. Returns 0 or the
/// errno.
int append_text(const std::filesystem::path& path, const std::string& text);

}  // namespace nanotron::io
