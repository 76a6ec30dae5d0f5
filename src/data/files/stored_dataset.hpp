#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "nanotron/base/types.hpp"
#include "nanotron/data/files/hdf5.hpp"
#include "nanotron/data/files/read_only_file.hpp"

namespace nanotron::data {

// Private to the data layer.

/// What a path is that is no HDF5 file, and what to do with it.
struct ForeignFile {
  std::string found;  // empty: an HDF5 file, possibly truncated
  std::string change;
};
/// Error(system_error) where the system cannot read it.
ForeignFile foreign_file(const std::filesystem::path& path);

// Private to data: how the values of a one-dimensional dataset lie in its file.

/// The number of values, once it is certain that the file has so many and that they were written. Error(data_error).
index_t checked_length(const hdf5::Dataset& dataset, const std::string& name, const ReadOnlyFile& disk);

/// Bytes of an unsigned integer type; 0 for other types.
int unsigned_bytes(const hdf5::Datatype& type);

/// "signed integers of 4 bytes"
std::string words_of(const hdf5::Datatype& type);

/// The byte from which on the values lie one after another in the file, as this machine has them in memory; nothing
/// where they do not.
std::optional<std::int64_t> plain_offset(const hdf5::Dataset& dataset, const std::string& name, int width, index_t size,
                                         const ReadOnlyFile& disk);
std::unique_ptr<BlockSource> open_plain(const std::string& name, std::int64_t offset,
                                        std::shared_ptr<const ReadOnlyFile> disk);

/// Bytes of the chunks of a dataset with filters: HDF5 unpacks a chunk as a whole for any value of it. 0 without
/// filters. Error(data_error) for chunks that are too large for that, with the line that makes another file.
std::int64_t packed_chunk(const hdf5::Dataset& dataset, const std::string& name, const ReadOnlyFile& disk);
/// Bytes of unpacked chunks that stay in memory: all of a small dataset, else two chunks.
std::int64_t kept_unpacked(std::int64_t chunk, std::int64_t all);

/// The values through HDF5: of any layout, filters and byte order. drop_from_cache() drops the chunks that were kept.
std::unique_ptr<BlockSource> open_converted(hdf5::Dataset dataset, const std::string& name, int width,
                                            std::shared_ptr<const ReadOnlyFile> disk);
/// The same of a file that does not stay open: HDF5 opens it when it is read, and keeps at most two chunks.
std::unique_ptr<BlockSource> open_converted_later(const std::string& name, int width,
                                                  std::shared_ptr<const ReadOnlyFile> disk);

}  // namespace nanotron::data
