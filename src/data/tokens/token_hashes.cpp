#include "nanotron/data/tokens/token_hashes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <vector>

#include "data/files/stored_dataset.hpp"
#include "nanotron/base/error.hpp"
#include "nanotron/data/files/byte_store.hpp"
#include "nanotron/data/tokens/token_file.hpp"

namespace nanotron::data {
namespace {

constexpr const char* algorithm = "xxh3_64";
constexpr index_t checked_at_most = index_t{8} << 20;  // bytes of hashes that are read as the file is opened

std::string hex(std::uint64_t hash) { return fmt::format("{:016x}", hash); }
std::uint64_t hash_of(const std::string& text) { return block_hash({text.data(), text.size()}); }
std::string place(const std::string& name) { return "hashes" + name; }  // "hashes/tokens"

// Of the hashes of a dataset's blocks: the hash of the hashes of blocks of them.
std::uint64_t hash_of(const std::vector<std::uint64_t>& hashes, index_t block) {
  std::vector<std::uint64_t> above;
  const auto step = static_cast<std::size_t>(block);
  const auto bytes_of = [](std::span<const std::uint64_t> values) {
    return std::span(reinterpret_cast<const char*>(values.data()), values.size_bytes());
  };
  for (std::size_t begin = 0; begin < hashes.size(); begin += step)
    above.push_back(block_hash(bytes_of(std::span(hashes).subspan(begin, std::min(step, hashes.size() - begin)))));
  return block_hash(bytes_of(above));
}

std::string content_text(const std::vector<std::pair<std::string, std::uint64_t>>& hashes) {
  std::string text;
  for (const auto& [name, hash] : hashes) text += fmt::format("{} {}\n", name.substr(1), hex(hash));
  return text;
}

std::string metadata_text(index_t block, std::uint64_t content, const std::string& metadata) {
  return fmt::format("block {}\ncontent {}\n{}", block, hex(content), metadata);
}

// Of a damaged file: what a terminal can show, and not all of a long template.
std::string printable(std::string text) {
  constexpr std::size_t longest = 800;
  for (char& c : text) {
    if (c != '\n' && (c < ' ' || c > '~')) c = '?';
  }
  return text.size() <= longest ? text : text.substr(0, longest) + "...";
}

[[noreturn]] void damaged(const std::string& what, const std::string& expected, const std::string& found,
                          const std::string& path) {
  fail(ExitCode::data_error,
       {.what = what,
        .expected = expected,
        .found = printable(found),
        .where = path,
        .change = fmt::format("restore the file from a copy, or recreate it. If a change of sizes or attributes was "
                              "intended: tools/nanotron_verify.py --replace {} writes new hashes",
                              path)});
}

std::uint64_t stated_hash(const hdf5::Group& group, const char* name, const std::string& path) {
  const std::string digits = hdf5::read_string(group.id(), name, path).value_or("");
  std::uint64_t value = 0;
  const auto [stop, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
  if (digits.size() != 16 || error != std::errc() || stop != digits.data() + digits.size())
    damaged(fmt::format("the attribute {} of /hashes is damaged", name), "16 hexadecimal digits",
            digits.empty() ? "nothing" : digits, path);
  return value;
}

void write_array(const hdf5::Group& group, const std::string& name, const std::vector<std::uint64_t>& hashes) {
  const hsize_t extent = hashes.size();
  const hdf5::Dataspace space(H5Screate_simple(1, &extent, nullptr));
  hdf5::Dataset made(hdf5::check(
      H5Dcreate2(group.id(), name.c_str() + 1, H5T_STD_U64LE, space.id(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT),
      ExitCode::system_error, "creating the hashes of " + name));
  if (!hashes.empty())
    hdf5::check(H5Dwrite(made.id(), H5T_NATIVE_UINT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, hashes.data()),
                ExitCode::system_error, "writing the hashes of " + name);
  made.close(ExitCode::system_error, "closing the hashes of " + name);
}

// Values per block, as the file says.
index_t stated_block(const hdf5::Group& group, const std::string& path) {
  const std::string kind = hdf5::read_string(group.id(), "algorithm", path).value_or("nothing");
  if (kind != algorithm) damaged("the hashes of the token file are of an unknown kind", algorithm, kind, path);
  const std::int64_t block = hdf5::read_integer(group.id(), "block", path).value_or(0);
  if (block < smallest_hash_block || block > largest_hash_block)
    damaged("the attribute block of /hashes is out of range",
            fmt::format("{} to {} values", smallest_hash_block, largest_hash_block), fmt::format("{}", block), path);
  return block;
}

// Reads the hashes of the arrays, again where they are not what the file says: the read may have failed.
void require_content(std::span<StoredArray* const> arrays, const std::vector<StoredArray>& hashes,
                     const TokenHashes& stated, const std::string& path) {
  std::uint64_t content = 0;
  for (int attempt = 0; attempt < 3; ++attempt) {
    std::vector<std::pair<std::string, std::uint64_t>> all;
    for (std::size_t i = 0; i < arrays.size(); ++i) {
      if (attempt > 0) hashes[i].drop_from_cache();
      all.emplace_back(arrays[i]->name(), hash_of(hashes[i].read_all(), stated.block));
    }
    content = hash_of(content_text(all));
    if (content == stated.content) return;
  }
  damaged("the hashes of the token file are damaged", hex(stated.content) + " over all of them", hex(content), path);
}

}  // namespace

StoredArray hashes_of(const hdf5::File& file, const StoredArray& array, std::shared_ptr<const ReadOnlyFile> disk) {
  const std::string name = place(array.name()), &path = disk->name();
  auto dataset = hdf5::open_dataset(file.id(), name, path);
  hdf5::checked_shape(dataset, "/" + name, path);
  const hdf5::Datatype type(H5Dget_type(dataset.id()));
  if (unsigned_bytes(type) != 8)
    damaged(fmt::format("/{} has the wrong type", name), "unsigned integers of 8 bytes", words_of(type), path);
  return {std::move(dataset), "/" + name, 8, std::move(disk)};
}

TokenHashes open_hashes(const hdf5::File& file, std::span<StoredArray* const> arrays, const std::string& metadata,
                        std::shared_ptr<const ReadOnlyFile> disk) {
  if (!hdf5::exists(file.id(), "hashes")) return {};
  const std::string& path = disk->name();
  const hdf5::Group group = hdf5::open_group(file.id(), "hashes", path);
  const TokenHashes found{.block = stated_block(group, path), .content = stated_hash(group, "content", path)};
  const std::uint64_t stated = stated_hash(group, "metadata", path),
                      is = hash_of(metadata_text(found.block, found.content, metadata));
  if (is != stated)
    damaged("sizes or attributes of the token file have changed", "the hash " + hex(stated),
            fmt::format("{}, of\n{}", hex(is), metadata), path);
  std::vector<StoredArray> hashes;
  index_t bytes = 0;
  for (const StoredArray* const array : arrays) {
    hashes.push_back(hashes_of(file, *array, disk));
    bytes += 8 * hashes.back().size();
  }
  if (bytes <= checked_at_most) require_content(arrays, hashes, found, path);
  for (std::size_t i = 0; i < arrays.size(); ++i) arrays[i]->compare_with(std::move(hashes[i]), found.block);
  return found;
}

std::uint64_t content_of(const TokenFile& file) {
  std::vector<std::pair<std::string, std::uint64_t>> hashes;
  for (const StoredArray* const array : file.arrays())
    hashes.emplace_back(array->name(), hash_of(array->hashes_of_blocks(hash_block), hash_block));
  return hash_of(content_text(hashes));
}

void add_hashes(const std::filesystem::path& path, index_t block) {
  std::map<std::string, std::vector<std::uint64_t>> blocks;
  std::vector<std::pair<std::string, std::uint64_t>> hashes;
  std::string metadata;
  {
    const TokenFile tokens(path, TokenFile::Hashes::ignored);
    for (const StoredArray* const array : tokens.arrays()) {
      const std::vector<std::uint64_t>& of = blocks[array->name()] = array->hashes_of_blocks(block);
      hashes.emplace_back(array->name(), hash_of(of, block));
    }
    metadata = tokens.metadata();
  }
  const std::uint64_t content = hash_of(content_text(hashes));
  const auto store = std::make_shared<hdf5::FileStore>(std::filesystem::canonical(path), hdf5::Access::update);
  hdf5::File file = hdf5::open_through(store, hdf5::Access::update);
  if (hdf5::exists(file.id(), "hashes")) H5Ldelete(file.id(), "hashes", H5P_DEFAULT);
  {
    const hdf5::Group group(hdf5::check(H5Gcreate2(file.id(), "hashes", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT),
                                        ExitCode::system_error, "creating /hashes"));
    hdf5::write_string(group.id(), "algorithm", algorithm);
    hdf5::write_integer(group.id(), "block", block);
    hdf5::write_string(group.id(), "content", hex(content));
    hdf5::write_string(group.id(), "metadata", hex(hash_of(metadata_text(block, content, metadata))));
    for (const auto& [name, of] : blocks) write_array(group, name, of);
  }
  file.close(ExitCode::system_error, fmt::format("closing {}", path.string()));
  store->close();
}

}  // namespace nanotron::data
