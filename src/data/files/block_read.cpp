#include "nanotron/data/files/block_read.hpp"

#include <fmt/format.h>
#include <xxhash.h>

#include <optional>

#include "nanotron/base/error.hpp"
#include "nanotron/base/host.hpp"

namespace nanotron::data {

std::uint64_t block_hash(std::span<const char> block) { return XXH3_64bits(block.data(), block.size()); }

std::uint64_t read_block(const BlockSource& source, std::int64_t begin, std::span<char> block, std::uint64_t expected) {
  constexpr int attempts = 3;
  const auto bytes = static_cast<std::int64_t>(block.size());
  std::optional<std::uint64_t> wrong;
  std::string failure;
  for (int attempt = 0; attempt < attempts; ++attempt) {
    if (attempt > 0) source.forget(bytes, begin);
    try {
      source.read(block.data(), bytes, begin);
    } catch (const Error& error) {
      failure = reason(error);
      continue;
    }
    const std::uint64_t hash = block_hash(block);
    if (hash == expected) return hash;
    if (wrong && *wrong != hash) failure = fmt::format("hash {:016x}, then {:016x}", *wrong, hash);
    wrong = hash;
  }
  if (failure.empty()) return *wrong;
  fail(ExitCode::system_error, {.what = fmt::format("bytes {} to {} of {} cannot be read on host {}, after {} tries",
                                                    begin, begin + bytes - 1, source.name(), host_name(), attempts),
                                .found = failure,
                                .change = "run again, on other nodes if it happens again"});
}

}  // namespace nanotron::data
