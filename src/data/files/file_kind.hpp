#pragma once
// Private to the data layer.

#include <filesystem>
#include <string>

namespace nanotron::data {

/// What a path is that is no HDF5 file, and what to do with it.
struct ForeignFile {
  std::string found;  // empty: an HDF5 file, possibly truncated
  std::string change;
};
/// Error(system_error) where the system cannot read it.
ForeignFile foreign_file(const std::filesystem::path& path);

}  // namespace nanotron::data
