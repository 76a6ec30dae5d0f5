#pragma once

// Small files of text beside a run: deck.nml, the status file.

#include <filesystem>
#include <string>

namespace nanotron::io {

/// Writes `text` to "<path>.tmp" and renames it: the old file stays until the new one is whole. Whatever has that name
/// (a link, a pipe) is removed, never followed or waited for. 0, or the errno.
int replace_text(const std::filesystem::path& path, const std::string& text);

/// Adds `text` to the end of a plain file, which is made where nothing has the name; no link is followed. 0, or the
/// errno.
int append_text(const std::filesystem::path& path, const std::string& text);

}  // namespace nanotron::io
