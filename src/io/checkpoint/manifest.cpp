#include "nanotron/io/checkpoint/manifest.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <climits>
#include <nlohmann/json.hpp>
#include <optional>

#include "io/blocks/block_checker.hpp"
#include "nanotron/base/error.hpp"
#include "nanotron/base/files.hpp"
#include "nanotron/comm/communicator.hpp"
#include "nanotron/comm/session/waiting.hpp"
#include "nanotron/data/files/read_only_file.hpp"
#include "nanotron/io/checkpoint/checkpoint.hpp"
#include "step_folders.hpp"

namespace nanotron::io {
namespace {

using comm::collectively;
using nlohmann::json;

constexpr std::int64_t manifest_limit = std::int64_t{256} << 20;
constexpr std::int64_t smallest_block = 4096, largest_block = std::int64_t{1} << 30;
constexpr std::size_t max_blocks = std::size_t{1} << 24;  // 64 TiB of the blocks that are written here
constexpr int max_depth = 16;

[[noreturn]] void damaged(const std::string& what) { throw Error(ExitCode::data_error, what); }

std::int64_t integer_field(const json& object, const char* name, std::int64_t low, std::int64_t high) {
  const auto field = object.find(name);
  if (field == object.end() || !field->is_number_integer() ||
      (field->is_number_unsigned() && field->get<std::uint64_t>() > std::uint64_t(INT64_MAX)))
    damaged(fmt::format("the manifest has no integer '{}'", name));
  const auto value = field->get<std::int64_t>();
  if (value < low || value > high)
    damaged(fmt::format("the manifest's '{}' is {}, expected {} to {}", name, value, low, high));
  return value;
}

void string_field(const json& object, const char* name, const std::string& expected) {
  const auto field = object.find(name);
  if (field == object.end() || !field->is_string() || field->get<std::string>() != expected)
    damaged(fmt::format("the manifest's '{}' is not '{}'", name, expected));
}

// Nothing where the text is not a hash.
std::optional<std::uint64_t> hash_of(const std::string& digits) {
  std::uint64_t value = 0;
  const char* end = digits.data() + digits.size();
  const auto [stop, error] = std::from_chars(digits.data(), end, value, 16);
  if (digits.size() != 16 || error != std::errc() || stop != end) return std::nullopt;
  return value;
}

// Takes a manifest as it is parsed, so that memory is bounded whatever the text: the known scalars of the object, and
// the hashes. A parser that it tells to stop (false) found no manifest.
class ManifestText final : public nlohmann::json_sax<json> {
 public:
  json fields = json::object();
  std::vector<std::uint64_t> blocks;
  bool has_blocks = false, ended = false;
  std::optional<std::size_t> wrong_block;

  bool null() override { return add(json()); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t&) override { return add(value); }
  bool binary(binary_t&) override { return false; }
  bool string(string_t& value) override {
    if (!in_blocks()) return add(value);
    const auto hash = hash_of(value);
    if (!hash && !wrong_block) wrong_block = blocks.size();
    blocks.push_back(hash.value_or(0));
    return blocks.size() <= max_blocks;
  }
  bool key(string_t& value) override {
    if (depth_ == 1) key_ = value;
    return true;
  }
  bool start_object(std::size_t) override { return enter(false); }
  bool start_array(std::size_t) override { return depth_ > 0 && enter(depth_ == 1 && key_ == "blocks"); }
  bool end_object() override { return leave(); }
  bool end_array() override { return leave(); }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception&) override { return false; }

 private:
  bool in_blocks() const { return is_blocks_ && depth_ == 2; }
  bool enter(bool blocks_begin) {
    if (in_blocks() && !wrong_block) wrong_block = blocks.size();
    if (blocks_begin) has_blocks = is_blocks_ = true;
    return ++depth_ <= max_depth;
  }
  bool leave() {
    if (--depth_ == 1) is_blocks_ = false;
    ended = depth_ == 0;
    return true;
  }
  bool add(json value) {
    static constexpr const char* known[] = {"format", "version", "step", "file", "bytes", "block_bytes", "hash"};
    if (in_blocks() && !wrong_block) wrong_block = blocks.size();
    if (depth_ == 1 && std::ranges::find(known, key_) != std::end(known)) fields[key_] = std::move(value);
    return depth_ > 0;
  }

  int depth_ = 0;
  bool is_blocks_ = false;
  std::string key_;
};

std::int64_t blocks_of(std::int64_t bytes, std::int64_t block_bytes) {
  return bytes / block_bytes + (bytes % block_bytes != 0);
}

// Bytes that the manifest of this file may have: a line of 22 for each of its blocks, and some.
std::int64_t largest_manifest(const std::filesystem::path& file) {
  const std::optional<std::int64_t> bytes = files::bytes_of(file);
  return bytes ? std::min(manifest_limit, 65536 + 32 * (*bytes / smallest_block + 1)) : manifest_limit;
}

// Of a file that a checkpoint has to have.
std::int64_t bytes_in(const std::filesystem::path& file) {
  const std::optional<std::int64_t> bytes = files::bytes_of(file);
  if (!bytes) damaged(fmt::format("{} cannot be read: there is no such file", file.filename().string()));
  return *bytes;
}

std::string read_manifest(const std::filesystem::path& path) {
  if (const auto absence = absence_of(path.parent_path())) damaged(absence->reason);
  const std::int64_t count = bytes_in(path), limit = largest_manifest(path.parent_path() / checkpoint_file_name);
  if (count > limit) damaged(fmt::format("{} has {} bytes, expected at most {}", manifest_file_name, count, limit));
  const data::ReadOnlyFile input(path);
  std::string text(static_cast<std::size_t>(count), '\0'), again = text;
  input.read(text.data(), count, 0);
  input.drop_from_cache(count, 0);
  input.read(again.data(), count, 0);
  if (text != again)
    fail(ExitCode::system_error, {.what = fmt::format("{} reads differently each time", path.string())});
  return text;
}

void check_step_of_folder(const Manifest& manifest, const std::filesystem::path& folder) {
  const std::string name = folder.filename().string();
  std::int64_t step = -1;
  if (name.rfind("step_", 0) != 0) return;
  const auto [stop, error] = std::from_chars(name.data() + 5, name.data() + name.size(), step);
  if (error == std::errc() && stop == name.data() + name.size() && step != manifest.step)
    damaged(fmt::format("the manifest is of step {}, the folder of step {}", manifest.step, step));
}

}  // namespace

std::string to_json(const Manifest& manifest) {
  json blocks = json::array();
  for (const std::uint64_t hash : manifest.blocks) blocks.push_back(fmt::format("{:016x}", hash));
  const nlohmann::ordered_json object = {{"format", checkpoint_format}, {"version", checkpoint_version},
                                         {"step", manifest.step},       {"file", checkpoint_file_name},
                                         {"bytes", manifest.bytes},     {"block_bytes", manifest.block_bytes},
                                         {"hash", "xxh3_64"},           {"blocks", std::move(blocks)}};
  return object.dump(1) + "\n";
}

Manifest parse_manifest(const std::string& text) {
  ManifestText parsed;
  if (!json::sax_parse(text, &parsed) || !parsed.ended) damaged("the manifest is not a JSON object");
  const json& object = parsed.fields;
  string_field(object, "format", checkpoint_format);
  const std::int64_t version = integer_field(object, "version", 0, INT64_MAX);
  if (version != checkpoint_version) {
    fail(ExitCode::data_error, {.what = "the checkpoint has another format version",
                                .expected = fmt::format("{}", checkpoint_version),
                                .found = fmt::format("{}", version),
                                .where = manifest_file_name,
                                .change = other_version});
  }
  string_field(object, "file", checkpoint_file_name);
  string_field(object, "hash", "xxh3_64");
  Manifest manifest;
  manifest.step = integer_field(object, "step", 0, INT64_MAX);
  manifest.bytes = integer_field(object, "bytes", 1, INT64_MAX / 2);
  manifest.block_bytes = integer_field(object, "block_bytes", smallest_block, largest_block);
  const std::int64_t expected = blocks_of(manifest.bytes, manifest.block_bytes);
  if (!parsed.has_blocks || (std::ssize(parsed.blocks) != expected && !parsed.wrong_block))
    damaged(fmt::format("the manifest does not have the {} block hashes that its size requires", expected));
  if (parsed.wrong_block)
    damaged(fmt::format("the manifest's hash of block {} is not 16 hexadecimal digits", *parsed.wrong_block));
  manifest.blocks = std::move(parsed.blocks);
  manifest.hash = data::block_hash(text);
  return manifest;
}

namespace {

// The share of rank `rank` of `size`: consecutive blocks.
void verify_share(const std::filesystem::path& file, const Manifest& manifest, int rank, int size) {
  const std::int64_t count = blocks_of(manifest.bytes, manifest.block_bytes);
  const std::int64_t first = count * rank / size, last = count * (rank + 1) / size;
  if (first == last) return;
  const data::ReadOnlyFile input(file);
  std::vector<char> block;
  for (std::int64_t i = first; i < last; ++i) {
    const std::int64_t begin = i * manifest.block_bytes;
    block.resize(static_cast<std::size_t>(std::min(manifest.block_bytes, manifest.bytes - begin)));
    require_block(input, checkpoint_file_name, i, begin, block, manifest.blocks[static_cast<std::size_t>(i)]);
  }
}

}  // namespace

namespace {

// Rank 0 reads and parses it: the others receive 8 bytes for each block instead of the text.
Manifest manifest_of_root(MPI_Comm world, const std::filesystem::path& folder, int rank) {
  Manifest manifest;
  collectively(world, [&] {
    if (rank != 0) return;
    manifest = parse_manifest(read_manifest(folder / manifest_file_name));
    check_step_of_folder(manifest, folder);
  });
  std::array<std::int64_t, 5> head{manifest.step, manifest.bytes, manifest.block_bytes,
                                   std::bit_cast<std::int64_t>(manifest.hash), std::ssize(manifest.blocks)};
  NANOTRON_CHECK_MPI(MPI_Bcast(head.data(), static_cast<int>(head.size()), MPI_INT64_T, 0, world));
  NANOTRON_REQUIRE(head[4] <= INT_MAX, "{} blocks", head[4]);
  manifest.step = head[0], manifest.bytes = head[1], manifest.block_bytes = head[2];
  manifest.hash = std::bit_cast<std::uint64_t>(head[3]);
  manifest.blocks.resize(static_cast<std::size_t>(head[4]));
  NANOTRON_CHECK_MPI(MPI_Bcast(manifest.blocks.data(), static_cast<int>(head[4]), MPI_UINT64_T, 0, world));
  return manifest;
}

}  // namespace

Manifest verify_folder(MPI_Comm world, const std::filesystem::path& folder) {
  int rank = 0, size = 1;
  NANOTRON_CHECK_MPI(MPI_Comm_rank(world, &rank));
  NANOTRON_CHECK_MPI(MPI_Comm_size(world, &size));
  Manifest manifest = manifest_of_root(world, folder, rank);
  const std::filesystem::path file = folder / checkpoint_file_name;
  collectively(world, [&] {
    if (!comm::leads_host()) return;
    const std::int64_t bytes = bytes_in(file);
    if (bytes != manifest.bytes)
      damaged(fmt::format("{} has {} bytes, the manifest says {}", checkpoint_file_name, bytes, manifest.bytes));
  });
  collectively(world, [&] { verify_share(file, manifest, rank, size); });
  return manifest;
}

}  // namespace nanotron::io
