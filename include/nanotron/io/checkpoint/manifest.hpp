#pragma once

// manifest.json: what makes a checkpoint folder valid. Written last, by rank 0:
//   {"format":"nanotron_hpc checkpoint","version":1,"step":N,"file":"checkpoint.h5","bytes":<size>,
//    "block_bytes":4194304,"hash":"xxh3_64","blocks":["16 hex digits", ...]}
// Block i is XXH3-64 (seed 0) of the file's bytes [i*block_bytes, (i+1)*block_bytes).

#include <mpi.h>

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "nanotron/data/files/read_only_file.hpp"

namespace nanotron::io {

inline constexpr std::int64_t manifest_block_bytes = 4 << 20;

/// What a user can do about a checkpoint of another format version.
inline constexpr const char* other_version =
    "convert it: nanotron_convert.py to-hf of the release that wrote it, then from-hf of this one";

struct Manifest {
  std::int64_t step = 0;
  std::int64_t bytes = 0;
  std::int64_t block_bytes = manifest_block_bytes;
  std::vector<std::uint64_t> blocks;
  std::uint64_t hash = 0;  // data::block_hash of the text, where it was parsed
};

std::string to_json(const Manifest& manifest);
/// Throws Error(data_error) naming the field that is missing or wrong, for any text.
Manifest parse_manifest(const std::string& text);

/// Collective: checks a step folder against its manifest. Throws Error(data_error) that names the
/// first damage: manifest missing or malformed, another step, size, the first bad block and its
/// bytes. A block with another hash is read three times; Error(system_error) where a read fails or they differ.
Manifest verify_folder(MPI_Comm world, const std::filesystem::path& folder);

}  // namespace nanotron::io
