#pragma once

#include <cstdint>
#include <vector>

#include "read_only_file.hpp"

namespace nanotron::io {

/// Fills `block` with the bytes of the file from `begin` on and returns their XXH3-64. A read that fails or has another
/// hash than `expected` is repeated, three times in all: then the hash, if it was the same each time;
/// Error(system_error) naming host and bytes if a read failed or two had different wrong hashes.
std::uint64_t read_block(const ReadOnlyFile& file, std::int64_t begin, std::vector<char>& block,
                         std::uint64_t expected);

}  // namespace nanotron::io
