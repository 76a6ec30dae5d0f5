#pragma once

#include <xxhash.h>

#include <algorithm>

#include "nanotron/io/checkpoint/manifest.hpp"
#include "unit/data/scratch.hpp"

namespace nanotron::test {

/// A manifest that fits a file as it is.
inline io::Manifest manifest_of(const std::filesystem::path& path, std::int64_t step = 0,
                                std::int64_t block_bytes = io::manifest_block_bytes) {
  const std::vector<char> bytes = read_bytes(path);
  io::Manifest manifest{.step = step, .bytes = std::ssize(bytes), .block_bytes = block_bytes, .blocks = {}};
  for (std::int64_t at = 0; at < manifest.bytes; at += block_bytes) {
    const std::int64_t count = std::min(block_bytes, manifest.bytes - at);
    manifest.blocks.push_back(XXH3_64bits(bytes.data() + at, static_cast<std::size_t>(count)));
  }
  return manifest;
}

}  // namespace nanotron::test
