#include "block_read.hpp"

#include <fmt/format.h>
#include <xxhash.h>

#include <optional>

#include "nanotron/base/error.hpp"
#include "nanotron/base/host.hpp"

namespace nanotron::io {

std::uint64_t read_block(const ReadOnlyFile& file, std::int64_t begin, std::vector<char>& block,
                         std::uint64_t expected) {
  constexpr int attempts = 3;
  const auto bytes = static_cast<std::int64_t>(block.size());
  std::optional<std::uint64_t> wrong;
  std::string failure;
  for (int attempt = 0; attempt < attempts; ++attempt) {
    if (attempt > 0) file.forget(bytes, begin);
    try {
      file.read(block.data(), bytes, begin);
    } catch (const Error& error) {
      failure = reason(error);
      continue;
    }
    const std::uint64_t hash = XXH3_64bits(block.data(), block.size());
    if (hash == expected) return hash;
    if (wrong && *wrong != hash) failure = fmt::format("hash {:016x}, then {:016x}", *wrong, hash);
    wrong = hash;
  }
  if (failure.empty()) return *wrong;
  fail(ExitCode::system_error, {.what = fmt::format("bytes {} to {} of {} cannot be read on host {}, tried {} times",
                                                    begin, begin + bytes - 1, file.name(), host_name(), attempts),
                                .found = failure,
                                .change = "run again, on other nodes if it happens again"});
}

}  // namespace nanotron::io
