#include "piece_table.hpp"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>

#include "nanotron/base/error.hpp"
#include "nanotron/data/files/read_only_file.hpp"
#include "nanotron/io/copies/neighbour_copies.hpp"

namespace nanotron::io {
namespace {

constexpr std::int64_t format_number = 0x31636f6e6e;  // changes with the layout of the table
constexpr std::int64_t largest_table = std::int64_t{1} << 30;
constexpr std::int64_t largest_image = INT64_MAX / 2;

[[noreturn]] void damaged(const std::string& what) { throw Error(ExitCode::data_error, what); }

void add(std::string& bytes, std::int64_t value) { bytes.append(reinterpret_cast<const char*>(&value), sizeof value); }
void add(std::string& bytes, const std::string& text) {
  add(bytes, std::ssize(text));
  bytes += text;
}

// Takes values from the front of bytes whose hash is right.
class Taker {
 public:
  explicit Taker(std::string_view bytes) : left_(bytes) {}

  std::int64_t number() {
    std::int64_t value = 0;
    const std::string_view bytes = take(sizeof value);
    std::memcpy(&value, bytes.data(), sizeof value);
    return value;
  }
  std::string text() { return std::string(take(static_cast<std::size_t>(number()))); }
  bool is_done() const { return left_.empty(); }

 private:
  std::string_view take(std::size_t bytes) {
    if (bytes > left_.size()) damaged("the table of a copy is too short");
    const std::string_view front = left_.substr(0, bytes);
    left_.remove_prefix(bytes);
    return front;
  }
  std::string_view left_;
};

}  // namespace

std::string packed_extents(const FileImage& image) {
  std::string packed;
  for (const auto& [position, bytes] : image.extents()) {
    add(packed, position);
    add(packed, std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  }
  return packed;
}

void unpack_extents(const std::string& packed, FileImage& image) {
  for (Taker taker(packed); !taker.is_done();) {
    const std::int64_t position = taker.number();
    const std::string bytes = taker.text();
    if (position < 0 || position > largest_image) damaged("the metadata of a copy lie outside of its file");
    image.write(bytes.data(), std::ssize(bytes), position);
  }
}

std::string to_bytes(const PieceTable& table) {
  std::string bytes;
  add(bytes, format_number);
  add(bytes, table.name.text());
  add(bytes, table.run);
  add(bytes, table.file.bytes);
  add(bytes, table.file.block_bytes);
  add(bytes, std::ssize(table.blocks));
  for (const auto& [block, hash] : table.blocks) {
    add(bytes, block);
    add(bytes, static_cast<std::int64_t>(hash));
  }
  add(bytes, table.metadata);
  add(bytes, static_cast<std::int64_t>(XXH3_64bits(bytes.data(), bytes.size())));
  return bytes;
}

PieceTable parse_piece_table(const std::string& bytes) {
  constexpr std::size_t hash_bytes = sizeof(std::int64_t);
  if (bytes.size() < hash_bytes) damaged("the table of a copy is too short");
  const std::string_view content = std::string_view(bytes).substr(0, bytes.size() - hash_bytes);
  const auto hash = static_cast<std::uint64_t>(Taker(std::string_view(bytes).substr(content.size())).number());
  if (XXH3_64bits(content.data(), content.size()) != hash) damaged("hash mismatch in the table of a copy");
  Taker taker(content);
  if (taker.number() != format_number) damaged("the copy is of another release");
  PieceTable table;
  const auto name = PieceName::parse(taker.text());
  if (!name) damaged("the table of a copy has no name");
  table.name = *name;
  table.run = taker.text();
  table.file.bytes = taker.number();
  table.file.block_bytes = taker.number();
  if (table.file.bytes < 1 || table.file.bytes > largest_image || table.file.block_bytes != copy_block_bytes)
    damaged("the table of a copy gives an impossible size");
  const std::int64_t blocks = taker.number();
  if (blocks < 0 || blocks > table.file.blocks()) damaged("the table of a copy has more blocks than its file");
  for (std::int64_t i = 0; i < blocks; ++i) {
    const std::int64_t block = taker.number();
    table.blocks.emplace_back(block, static_cast<std::uint64_t>(taker.number()));
  }
  table.metadata = taker.text();
  if (!taker.is_done()) damaged("the table of a copy is too long");
  return table;
}

PieceTable read_piece_table(const CopyFolder& folder, const PieceName& name, const std::string& run) {
  const data::ReadOnlyFile file(folder.table_of(name));
  const std::int64_t size = file.status().bytes;
  if (size > largest_table) damaged("the table of a copy has an impossible size");
  std::string bytes(static_cast<std::size_t>(size), '\0');
  file.read(bytes.data(), std::ssize(bytes), 0);
  PieceTable table = parse_piece_table(bytes);
  if (table.name != name || table.run != run) damaged("the copy is of another run");
  return table;
}

void verify_piece(const std::filesystem::path& blocks, const PieceTable& table) {
  const data::ReadOnlyFile file(blocks);
  if (file.status().bytes != table.file.bytes) damaged(fmt::format("{} has another size", blocks.string()));
  std::vector<char> block;
  for (const auto& [number, expected] : table.blocks) {
    if (number < 0 || number >= table.file.blocks())
      damaged("the table of a copy has a block that the file does not have");
    const std::int64_t begin = number * table.file.block_bytes;
    block.resize(static_cast<std::size_t>(std::min(table.file.block_bytes, table.file.bytes - begin)));
    if (data::read_block(file, begin, block, expected) != expected)
      damaged(fmt::format("{} is damaged in block {}", blocks.string(), number));
  }
}

}  // namespace nanotron::io
