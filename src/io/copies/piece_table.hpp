#pragma once

// What makes the blocks of a piece usable: whose they are, their hashes, and the metadata of the image. Written last.

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "copy_folder.hpp"
#include "nanotron/io/blocks/block_exchange.hpp"
#include "nanotron/io/blocks/file_image.hpp"

namespace nanotron::io {

struct PieceTable {
  PieceName name;
  std::string run;
  BlockedFile file;                                              // the whole image
  std::vector<std::pair<std::int64_t, std::uint64_t>> blocks{};  // number and XXH3-64 of those of this piece
  std::string metadata{};                                        // packed_extents of the image
};

/// What HDF5 wrote into an image. unpack adds it to an empty one.
std::string packed_extents(const FileImage& image);
void unpack_extents(const std::string& packed, FileImage& image);

/// Ends with the hash of what is before. Error(data_error) for any other bytes.
std::string to_bytes(const PieceTable& table);
PieceTable parse_piece_table(const std::string& bytes);

/// Of a file in the folder; it must be that of `name` and `run`. Error(data_error).
PieceTable read_piece_table(const CopyFolder& folder, const PieceName& name, const std::string& run);

/// Reads all blocks. Error(data_error) that names the first that is missing or has another hash; Error(system_error)
/// where a read fails.
void verify_piece(const std::filesystem::path& blocks, const PieceTable& table);

}  // namespace nanotron::io
