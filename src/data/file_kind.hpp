#pragma once
// Private to the data layer.

#include <filesystem>
#include <string>

namespace nanotron::data {

/// What a path that is no HDF5 file is instead, and what to do with it.
struct ForeignFile {
  std::string found;  // empty: it is an HDF5 file, whole or not
  std::string change;
};
ForeignFile foreign_file(const std::filesystem::path& path);

}  // namespace nanotron::data
