#pragma once

#include <filesystem>
#include <string>

namespace nanotron {

/// A path of a deck or a command line for a message: relative ones begin at the folder that the program was started in.
inline std::string whole_path(const std::filesystem::path& path) {
  std::error_code no_folder;
  const std::filesystem::path whole = std::filesystem::absolute(path, no_folder);
  return no_folder ? path.string() : whole.lexically_normal().string();
}

}  // namespace nanotron
