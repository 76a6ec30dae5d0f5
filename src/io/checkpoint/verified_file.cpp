#include "nanotron/io/checkpoint/verified_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "nanotron/base/error.hpp"
#include "nanotron/base/process.hpp"
#include "nanotron/data/files/read_only_file.hpp"

namespace nanotron::io {
VerifiedFile::VerifiedFile(const std::filesystem::path& path, Manifest manifest)
    : file_(std::make_unique<data::ReadOnlyFile>(path)), manifest_(std::move(manifest)) {}
VerifiedFile::~VerifiedFile() = default;

const std::string& VerifiedFile::name() const { return file_->name(); }

void VerifiedFile::load(std::int64_t block) {
  const std::int64_t begin = block * manifest_.block_bytes,
                     bytes = std::min(manifest_.block_bytes, manifest_.bytes - begin);
  NANOTRON_REQUIRE(block >= 0 && bytes > 0, "{}: bytes from {} on, of {}", name(), begin, manifest_.bytes);
  block_.resize(static_cast<std::size_t>(bytes));
  loaded_ = -1;
  const std::uint64_t expected = manifest_.blocks[static_cast<std::size_t>(block)];
  const std::uint64_t hash = data::read_block(*file_, begin, block_, expected);
  if (hash != expected) {
    fail(ExitCode::system_error,
         {.what = fmt::format("block {} of {} (bytes {} to {}) was intact when it was checked, but is not on host {}",
                              block, name(), begin, begin + bytes - 1, host_name()),
          .found = fmt::format("hash {:016x}, the manifest says {:016x}", hash, expected),
          .change = "run again, on other nodes if it happens again"});
  }
  loaded_ = block;
}

void VerifiedFile::read(void* target, std::int64_t bytes, std::int64_t position) {
  for (auto* to = static_cast<char*>(target); bytes > 0;) {
    const std::int64_t block = position / manifest_.block_bytes, at = position % manifest_.block_bytes;
    if (block != loaded_) load(block);
    const std::int64_t count = std::min(bytes, static_cast<std::int64_t>(block_.size()) - at);
    NANOTRON_REQUIRE(count > 0, "{}: bytes past end of file, at {}", name(), position);
    std::memcpy(to, block_.data() + at, static_cast<std::size_t>(count));
    to += count;
    position += count;
    bytes -= count;
  }
}

}  // namespace nanotron::io
