#pragma once

// Reads of blocks whose hash is known. A bit flip or failure on the way from disk is distinguished from file damage by
// reading again.

#include <cstdint>
#include <span>
#include <string>

namespace nanotron::data {

/// Bytes that can be read again.
class BlockSource {
 public:
  virtual ~BlockSource() = default;
  virtual const std::string& name() const = 0;
  /// Error(data_error) at the end, Error(system_error) where the system reports one.
  virtual void read(void* target, std::int64_t bytes, std::int64_t position) const = 0;
  /// The next read of these bytes asks the disk or the network again, as far as the system follows the advice.
  virtual void forget(std::int64_t bytes, std::int64_t position) const = 0;
};

/// XXH3-64 with seed 0.
std::uint64_t block_hash(std::span<const char> block);

/// Fills `block` with the bytes from `begin` on and returns their block_hash. A read that fails or has another hash
/// than `expected` is repeated, three times in all: then the hash, if it was the same each time; Error(system_error)
/// naming host and bytes if a read failed or two had different wrong hashes.
std::uint64_t read_block(const BlockSource& source, std::int64_t begin, std::span<char> block, std::uint64_t expected);

}  // namespace nanotron::data
