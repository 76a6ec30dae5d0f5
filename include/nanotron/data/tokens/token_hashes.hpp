#pragma once

// /hashes of a token file: they show whether its bytes are those that were written (doc/data.md#hashes).

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "nanotron/data/files/hdf5.hpp"
#include "nanotron/data/files/stored_array.hpp"

namespace nanotron::data {

class TokenFile;

struct TokenHashes {
  index_t block = 0;  // values per hashed block; 0: the file has no hashes
  /// Hash of the hashes of all blocks: the same in files with the same tokens, documents and loss mask.
  std::uint64_t content = 0;

  bool exist() const { return block > 0; }
};

/// Reads /hashes if the file has it; from then on `arrays` (the datasets of the file) compare their blocks with it.
/// `metadata`: the text of all sizes and attributes, which must have the hash stored in the file. Hashes of up to 8 MiB
/// are read and compared with `content`; damage in larger ones is found with the block. Error(data_error) if they do
/// not match the file.
TokenHashes open_hashes(const hdf5::File& file, std::span<StoredArray* const> arrays, const std::string& metadata,
                        std::shared_ptr<const ReadOnlyFile> disk);

/// /hashes/<name of the array>. Error(data_error) where there is none, or no integers of 8 bytes.
StoredArray hashes_of(const hdf5::File& file, const StoredArray& array, std::shared_ptr<const ReadOnlyFile> disk);

/// TokenHashes::content of what the file has now; reads all of it, whether it has hashes or not.
std::uint64_t content_of(const TokenFile& file);

/// Writes /hashes into a token file, and replaces existing ones. Reads all of it.
void add_hashes(const std::filesystem::path& path, index_t block = hash_block);

}  // namespace nanotron::data
