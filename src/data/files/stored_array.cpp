#include "nanotron/data/files/stored_array.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <utility>

#include "nanotron/base/error.hpp"
#include "stored_dataset.hpp"

namespace nanotron::data {
namespace {

static_assert(std::endian::native == std::endian::little, "hashes are of little-endian values");

constexpr index_t piece_values = 32768;  // about, at a time
constexpr std::size_t max_blocks = piece_values / smallest_hash_block;

// Of this thread: what load() returns. Grows in the first calls only.
std::span<char> scratch(std::size_t bytes) {
  static thread_local std::vector<char> memory;
  if (memory.size() < bytes) memory.resize(bytes);
  return {memory.data(), bytes};
}

// Whether work() threw no Error.
template <class Work>
bool succeeds(const Work& work) {
  try {
    work();
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

StoredArray::StoredArray(hdf5::Dataset dataset, const std::string& name, int width,
                         std::shared_ptr<const ReadOnlyFile> disk)
    : name_(name), path_(disk->name()), width_(width), disk_(std::move(disk)), opened_(disk_->status()) {
  size_ = checked_length(dataset, name_, *disk_);
  if (const auto offset = plain_offset(dataset, name_, width, size_, *disk_)) {
    offset_ = *offset;
    is_plain_ = true;
    source_ = open_plain(name_, offset_, disk_);
  } else {
    const std::int64_t chunk = packed_chunk(dataset, name_, *disk_);
    if (chunk > 0 && kept_unpacked(chunk, size_ * width) < size_ * width) unpacked_again_ = chunk;
    source_ = open_converted(std::move(dataset), name_, width, disk_);
  }
  scratch(piece_bytes());
}

StoredArray::StoredArray(const Place& place, const std::string& name, const FileStatus& opened,
                         std::shared_ptr<const ReadOnlyFile> disk)
    : name_(name),
      path_(disk->name()),
      size_(std::max<index_t>(place.size, 0)),
      width_(place.width),
      is_plain_(place.is_plain),
      unpacked_again_(place.unpacked_again),
      offset_(place.offset),
      disk_(std::move(disk)),
      opened_(opened) {
  if (place.size < 0) return;
  source_ = is_plain_ ? open_plain(name_, offset_, disk_) : open_converted_later(name_, width_, disk_);
  scratch(piece_bytes());
}

StoredArray::~StoredArray() = default;
StoredArray::StoredArray(StoredArray&&) noexcept = default;
StoredArray& StoredArray::operator=(StoredArray&&) noexcept = default;

// Bytes that load() reads at most at once.
std::size_t StoredArray::piece_bytes() const {
  const index_t unit = is_compared() ? block_ : 1;
  return static_cast<std::size_t>(std::max<index_t>(piece_values / unit, 1) * unit * width_);
}

void StoredArray::compare_with(StoredArray hashes, index_t block) {
  const index_t blocks = size_ / block + (size_ % block != 0 ? 1 : 0);
  if (hashes.size() != blocks)
    fail(ExitCode::data_error, {.what = fmt::format("{} does not match {}", hashes.name(), name_),
                                .expected = fmt::format("{} hashes, one for {} values each", blocks, block),
                                .found = fmt::format("{}", hashes.size()),
                                .where = path_,
                                .change = "rewrite them: tools/nanotron_verify.py --replace"});
  block_ = block;
  hashes_ = std::make_unique<StoredArray>(std::move(hashes));
  scratch(piece_bytes());
}

StoredArray::Values StoredArray::load(index_t first, index_t count) const {
  const index_t unit = is_compared() ? block_ : 1;
  const index_t begin = first / unit * unit, last = first + std::min(count, size_ - first);
  const index_t most = static_cast<index_t>(piece_bytes()) / width_;
  const index_t whole = std::min(size_, (last + unit - 1) / unit * unit);  // to the end of a block
  const index_t end = std::min(begin + most, whole);
  const std::span<char> bytes = scratch(static_cast<std::size_t>((end - begin) * width_));
  if (is_compared()) {
    read_compared(begin, bytes);
  } else {
    source_->read(bytes.data(), static_cast<std::int64_t>(bytes.size()), begin * width_);
  }
  return {bytes.data() + (first - begin) * width_, std::min(end, last) - first};
}

void StoredArray::read_compared(index_t first, std::span<char> bytes) const {
  const auto block_bytes = static_cast<std::size_t>(block_ * width_);
  const std::size_t blocks = (bytes.size() + block_bytes - 1) / block_bytes;
  const index_t number = first / block_;
  std::array<std::uint64_t, max_blocks> expected;
  const bool arrived = succeeds([&] {
    hashes_->source_->read(expected.data(), static_cast<std::int64_t>(8 * blocks), 8 * number);
    source_->read(bytes.data(), static_cast<std::int64_t>(bytes.size()), first * width_);
  });
  for (std::size_t i = 0; i < blocks; ++i) {
    const std::size_t begin = i * block_bytes;
    const std::span<char> block = bytes.subspan(begin, std::min(block_bytes, bytes.size() - begin));
    if (arrived && block_hash(block) == expected[i]) continue;
    read_again(number + static_cast<index_t>(i), block);
  }
}

// The hash may be what came back wrong, or the block, or both. In a file that is being written to anything may be.
void StoredArray::read_again(index_t block, std::span<char> bytes) const {
  const auto size = static_cast<std::int64_t>(bytes.size());
  try {
    std::uint64_t expected = 0;
    hashes_->source_->drop_from_cache(8, 8 * block);
    hashes_->source_->read(&expected, 8, 8 * block);
    source_->drop_from_cache(size, block * block_ * width_);
    const std::uint64_t found = read_block(*source_, block * block_ * width_, bytes, expected);
    if (found != expected) damaged(block, expected, found);
  } catch (const Error& error) {
    if (disk_->status().is_unwritten_since(opened_)) throw;
    fail(ExitCode::data_error,
         {.what = fmt::format("token file changed during the run: {}", range_of(block)),
          .expected = "the size and modification time of the file when it was opened",
          .found = fmt::format("different ones, and {}", reason(error)),
          .where = path_,
          .change = "restore the file that the run started with, and resume from the last checkpoint; write new data "
                    "under another name"});
  }
}

// "block 3 of /tokens (values 12288 to 16383)"
std::string StoredArray::range_of(index_t block) const {
  const index_t begin = block * block_, end = std::min(size_, begin + block_);
  return fmt::format("block {} of {} (values {} to {})", block, name_, begin, end - 1);
}

void StoredArray::damaged(index_t block, std::uint64_t expected, std::uint64_t found) const {
  fail(ExitCode::data_error,
       {.what = fmt::format("the token file is damaged in {}", range_of(block)),
        .expected = fmt::format("the hash {:016x}, of {}", expected, hashes_->name()),
        .found = fmt::format("{:016x}, three times", found),
        .where = path_,
        .change = fmt::format("restore the file from a copy, or recreate it; tools/nanotron_verify.py {} lists all "
                              "damaged blocks. If the change was intended: --replace writes new hashes",
                              path_)});
}

std::vector<std::uint64_t> StoredArray::read_all() const {
  std::vector<std::uint64_t> values(static_cast<std::size_t>(size_));
  for_each_piece(0, size_, [&](const Values& piece, index_t at) {
    std::memcpy(values.data() + at, piece.data, static_cast<std::size_t>(piece.count) * sizeof(std::uint64_t));
  });
  return values;
}

ReadOnlyFile::Hole StoredArray::find_hole(std::int64_t smallest) const {
  ReadOnlyFile::Hole hole = disk_->find_hole(size_ * width_, offset_, smallest);
  hole.begin -= offset_;
  return hole;
}

std::vector<std::uint64_t> StoredArray::hashes_of_blocks(index_t block) const {
  std::vector<std::uint64_t> hashes;
  std::vector<char> bytes;
  for (index_t begin = 0; begin < size_; begin += block) {
    bytes.resize(static_cast<std::size_t>(std::min(block, size_ - begin) * width_));
    source_->read(bytes.data(), static_cast<std::int64_t>(bytes.size()), begin * width_);
    hashes.push_back(block_hash(bytes));
  }
  return hashes;
}

}  // namespace nanotron::data
