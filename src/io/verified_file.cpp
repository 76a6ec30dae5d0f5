#include "nanotron/io/verified_file.hpp"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>

#include "nanotron/base/error.hpp"
#include "nanotron/base/host.hpp"
#include "read_only_file.hpp"

namespace nanotron::io {
namespace {

constexpr int attempts = 3;

}  // namespace

struct VerifiedFile::Source {
  ReadOnlyFile file;
};

VerifiedFile::VerifiedFile(const std::filesystem::path& path, Manifest manifest)
    : source_(new Source{ReadOnlyFile(path)}), path_(path), manifest_(std::move(manifest)) {}
VerifiedFile::~VerifiedFile() = default;

void VerifiedFile::load(std::int64_t block) {
  const std::int64_t begin = block * manifest_.block_bytes,
                     bytes = std::min(manifest_.block_bytes, manifest_.bytes - begin);
  NANOTRON_REQUIRE(block >= 0 && bytes > 0, "{}: bytes from {} on, of {}", source_->file.name(), begin,
                   manifest_.bytes);
  block_.resize(static_cast<std::size_t>(bytes));
  loaded_ = -1;
  std::string failure;
  for (int attempt = 0; attempt < attempts; ++attempt) {
    if (attempt > 0) source_->file.forget(bytes, begin);
    try {
      source_->file.read(block_.data(), bytes, begin);
    } catch (const Error& error) {
      failure = reason(error);
      continue;
    }
    const std::uint64_t hash = XXH3_64bits(block_.data(), block_.size()),
                        expected = manifest_.blocks[static_cast<std::size_t>(block)];
    if (hash == expected) {
      loaded_ = block;
      return;
    }
    failure = fmt::format("hash {:016x}, the manifest says {:016x}", hash, expected);
  }
  fail(ExitCode::system_error,
       {.what =
            fmt::format("block {} of {} (bytes {} to {}) was whole when it was checked and reads differently on host "
                        "{}, {} times",
                        block, source_->file.name(), begin, begin + bytes - 1, host_name(), attempts),
        .found = failure,
        .change = "run again, on other nodes if it happens again"});
}

void VerifiedFile::read(void* target, std::int64_t bytes, std::int64_t position) {
  for (auto* to = static_cast<char*>(target); bytes > 0;) {
    const std::int64_t block = position / manifest_.block_bytes, at = position % manifest_.block_bytes;
    if (block != loaded_) load(block);
    const std::int64_t count = std::min(bytes, static_cast<std::int64_t>(block_.size()) - at);
    NANOTRON_REQUIRE(count > 0, "{}: bytes behind the end, at {}", source_->file.name(), position);
    std::memcpy(to, block_.data() + at, static_cast<std::size_t>(count));
    to += count;
    position += count;
    bytes -= count;
  }
}

}  // namespace nanotron::io
