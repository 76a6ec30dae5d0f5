#include "nanotron/io/manifest.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <charconv>
#include <climits>
#include <cstring>
#include <nlohmann/json.hpp>

#include <xxhash.h>

#include "block_read.hpp"
#include "nanotron/base/error.hpp"
#include "nanotron/comm/agreement.hpp"
#include "nanotron/io/checkpoint.hpp"
#include "step_folders.hpp"

namespace nanotron::io {
namespace {

using comm::collectively;
using nlohmann::json;

constexpr std::uintmax_t manifest_limit = std::uintmax_t{256} << 20;
constexpr std::int64_t smallest_block = 4096, largest_block = std::int64_t{1} << 30;

[[noreturn]] void damaged(const std::string& what) { throw Error(ExitCode::data_error, what); }

std::int64_t integer_field(const json& object, const char* name, std::int64_t low,
                           std::int64_t high) {
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

std::uint64_t hash_field(const json& text, std::size_t index) {
  std::uint64_t value = 0;
  if (text.is_string()) {
    const auto& digits = text.get_ref<const std::string&>();
    const char* end = digits.data() + digits.size();
    const auto [stop, error] = std::from_chars(digits.data(), end, value, 16);
    if (digits.size() == 16 && error == std::errc() && stop == end) return value;
  }
  damaged(fmt::format("the manifest's hash of block {} is not 16 hexadecimal digits", index));
}

std::int64_t blocks_of(std::int64_t bytes, std::int64_t block_bytes) {
  return bytes / block_bytes + (bytes % block_bytes != 0);
}

// The text of the manifest as rank 0 reads it, on all ranks.
std::string broadcast_manifest(MPI_Comm world, const std::filesystem::path& path) {
  return comm::text_of_root(world, [&] {
    if (const auto absence = absence_of(path.parent_path())) damaged(absence->reason);
    std::error_code error;
    const auto bytes = std::filesystem::file_size(path, error);
    if (error) damaged(fmt::format("{} cannot be read: {}", manifest_file_name, error.message()));
    if (bytes > manifest_limit) damaged(fmt::format("{} has {} bytes", manifest_file_name, bytes));
    const ReadOnlyFile input(path);
    std::string text(bytes, '\0'), again = text;
    const auto count = static_cast<std::int64_t>(bytes);
    input.read(text.data(), count, 0);
    input.forget(count, 0);
    input.read(again.data(), count, 0);
    if (text != again)
      fail(ExitCode::system_error, {.what = fmt::format("{} reads differently each time", path.string())});
    return text;
  });
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
  const nlohmann::ordered_json object = {
      {"format", checkpoint_format}, {"version", checkpoint_version},
      {"step", manifest.step},       {"file", checkpoint_file_name},
      {"bytes", manifest.bytes},     {"block_bytes", manifest.block_bytes},
      {"hash", "xxh3_64"},           {"blocks", std::move(blocks)}};
  return object.dump(1) + "\n";
}

Manifest parse_manifest(const std::string& text) {
  const json object = json::parse(text, nullptr, false);
  if (object.is_discarded() || !object.is_object()) damaged("the manifest is not a JSON object");
  string_field(object, "format", checkpoint_format);
  const std::int64_t version = integer_field(object, "version", 0, INT64_MAX);
  if (version != checkpoint_version) {
    fail(ExitCode::data_error, {.what = "the checkpoint is of another format version",
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
  const auto blocks = object.find("blocks");
  const std::int64_t expected = blocks_of(manifest.bytes, manifest.block_bytes);
  if (blocks == object.end() || !blocks->is_array() ||
      static_cast<std::int64_t>(blocks->size()) != expected)
    damaged(fmt::format("the manifest has not the {} block hashes its size asks for", expected));
  for (std::size_t i = 0; i < blocks->size(); ++i)
    manifest.blocks.push_back(hash_field((*blocks)[i], i));
  return manifest;
}

void verify_share(const std::filesystem::path& file, const Manifest& manifest, int rank, int size) {
  const std::int64_t count = blocks_of(manifest.bytes, manifest.block_bytes);
  const ReadOnlyFile input(file);
  std::vector<char> block;
  for (std::int64_t i = count * rank / size; i < count * (rank + 1) / size; ++i) {
    const std::int64_t begin = i * manifest.block_bytes;
    block.resize(static_cast<std::size_t>(std::min(manifest.block_bytes, manifest.bytes - begin)));
    const std::uint64_t expected = manifest.blocks[static_cast<std::size_t>(i)];
    const std::uint64_t found = read_block(input, begin, block, expected);
    if (found == expected) continue;
    damaged(fmt::format("{} is damaged in block {} (bytes {} to {}): hash {:016x}, the manifest says {:016x}",
                        checkpoint_file_name, i, begin, begin + std::ssize(block) - 1, found, expected));
  }
}

Manifest verify_folder(MPI_Comm world, const std::filesystem::path& folder) {
  const Manifest manifest = parse_manifest(broadcast_manifest(world, folder / manifest_file_name));
  check_step_of_folder(manifest, folder);
  const std::filesystem::path file = folder / checkpoint_file_name;
  collectively(world, [&] {
    std::error_code error;
    const auto bytes = static_cast<std::int64_t>(std::filesystem::file_size(file, error));
    if (error) damaged(fmt::format("{} cannot be read: {}", checkpoint_file_name, error.message()));
    if (bytes != manifest.bytes)
      damaged(fmt::format("{} has {} bytes, the manifest says {}", checkpoint_file_name, bytes,
                          manifest.bytes));
  });
  int rank = 0, size = 1;
  NANOTRON_CHECK_MPI(MPI_Comm_rank(world, &rank));
  NANOTRON_CHECK_MPI(MPI_Comm_size(world, &size));
  collectively(world, [&] { verify_share(file, manifest, rank, size); });
  return manifest;
}

}  // namespace nanotron::io
