#include "copy_folder.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "io/files/durable_files.hpp"
#include "nanotron/base/error.hpp"
#include "nanotron/base/files.hpp"
#include "nanotron/base/process.hpp"
#include "nanotron/data/files/read_only_file.hpp"
#include "nanotron/io/copies/neighbour_copies.hpp"

namespace nanotron::io {
namespace {

namespace fs = std::filesystem;

std::string with_host(std::string directory, const std::string& host) {
  for (std::size_t at = 0; (at = directory.find("%h", at)) != std::string::npos; at += host.size())
    directory.replace(at, 2, host);
  return directory;
}

// Why nobody else can have made or can write what lies in the folder; empty: it is so.
std::string fault_of(const fs::path& folder) {
  struct stat status {};
  if (::lstat(folder.c_str(), &status) != 0) return std::strerror(errno);
  if (!S_ISDIR(status.st_mode)) return S_ISLNK(status.st_mode) ? "a symbolic link" : "no folder";
  if (status.st_uid != ::geteuid()) return fmt::format("of user {}", status.st_uid);
  if ((status.st_mode & 077) != 0) return fmt::format("mode {:o}", status.st_mode & 07777);
  return "";
}

void make_private(const fs::path& folder) {
  if (::mkdir(folder.c_str(), 0700) == 0) return;
  const int cause = errno;
  const std::string found = cause == EEXIST ? fault_of(folder) : std::strerror(cause);
  if (!found.empty())
    fail(ExitCode::system_error, {.what = fmt::format("a folder for copies cannot be used on host {}", host_name()),
                                  .expected = "a folder of this user's, mode 700",
                                  .found = found,
                                  .where = folder.string(),
                                  .change = "remove it, or set another checkpoint%neighbour_directory"});
}

}  // namespace

std::string CopyName::text() const {
  return fmt::format("step_{:08}.{:016x}.rank_{}_of_{}", step, generation, rank, ranks);
}

std::optional<CopyName> CopyName::parse(const std::string& text) {
  CopyName name;
  long long step = 0, rank = 0, ranks = 0;
  unsigned long long generation = 0;
  if (std::sscanf(text.c_str(), "step_%lld.%llx.rank_%lld_of_%lld", &step, &generation, &rank, &ranks) != 4)
    return std::nullopt;
  name = {.step = step, .generation = generation, .rank = rank, .ranks = ranks};
  return name.text() == text && rank >= 0 && rank < ranks ? std::optional(name) : std::nullopt;
}

CopyFolder::CopyFolder(const std::string& directory, const std::string& host, const std::string& run)
    : user_(fs::path(with_host(directory, host)) / fmt::format("nanotron_hpc-{}", ::geteuid())), path_(user_ / run) {}

bool CopyFolder::is_ours() const { return fault_of(user_).empty() && fault_of(path_).empty(); }

void CopyFolder::create() const {
  std::error_code error;
  fs::create_directories(user_.parent_path(), error);
  make_private(user_);
  make_private(path_);
}

std::vector<CopyName> CopyFolder::list() const {
  std::vector<CopyName> found;
  if (!files::exists(path_) || !is_ours()) return found;
  for (const fs::path& entry : files::entries_of(path_)) {
    if (entry.extension() != ".table" || files::kind_of_name(entry) != files::Kind::file) continue;
    const auto name = CopyName::parse(entry.stem().string());
    if (name && files::kind_of_name(blocks_of(*name)) == files::Kind::file) found.push_back(*name);
  }
  return found;
}

template <class F>
void CopyFolder::remove_where(const F& goes) const {
  if (!is_ours()) return;
  std::error_code error;
  std::vector<fs::path> old;
  for (auto entry = fs::directory_iterator(path_, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    if (goes(entry->path().filename().string())) old.push_back(entry->path());
  }
  for (const fs::path& file : old)
    if (file.extension() != ".blocks") fs::remove(file, error);  // a copy without its table is none
  for (const fs::path& file : old) fs::remove(file, error);
  ::rmdir(path_.c_str());
  ::rmdir(user_.c_str());
}

void CopyFolder::remove(std::uint64_t generation) const {
  remove_where(
      [&](const std::string& file) { return file.find(fmt::format(".{:016x}.", generation)) != std::string::npos; });
}

void CopyFolder::remove_all_but(std::uint64_t generation) const {
  remove_where(
      [&](const std::string& file) { return file.find(fmt::format(".{:016x}.", generation)) == std::string::npos; });
}

void CopyFolder::remove_all() const {
  remove_where([](const std::string&) { return true; });
}

void create_private_file(const fs::path& path, std::int64_t bytes) {
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  const bool good = descriptor >= 0 && uninterrupted([&] { return ::ftruncate(descriptor, bytes); }) == 0;
  const int cause = errno;
  if (descriptor >= 0) ::close(descriptor);
  if (!good)
    fail(ExitCode::system_error,
         {.what = fmt::format("{} cannot be made on host {}: {}", path.string(), host_name(), std::strerror(cause))});
}

namespace {

constexpr std::int64_t format_number = 0x31636f6e6e;  // changes with the layout of the table
constexpr std::int64_t largest_table = std::int64_t{1} << 30;
constexpr std::int64_t largest_image = INT64_MAX / 2;

[[noreturn]] void damaged_copy(const std::string& what) { throw Error(ExitCode::data_error, what); }

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
    if (bytes > left_.size()) damaged_copy("the table of a copy is too short");
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
    if (position < 0 || position > largest_image) damaged_copy("the metadata of a copy lie outside of its file");
    image.write(bytes.data(), std::ssize(bytes), position);
  }
}

std::string to_bytes(const CopyTable& table) {
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

CopyTable parse_copy_table(const std::string& bytes) {
  constexpr std::size_t hash_bytes = sizeof(std::int64_t);
  if (bytes.size() < hash_bytes) damaged_copy("the table of a copy is too short");
  const std::string_view content = std::string_view(bytes).substr(0, bytes.size() - hash_bytes);
  const auto hash = static_cast<std::uint64_t>(Taker(std::string_view(bytes).substr(content.size())).number());
  if (XXH3_64bits(content.data(), content.size()) != hash) damaged_copy("hash mismatch in the table of a copy");
  Taker taker(content);
  if (taker.number() != format_number) damaged_copy("the copy is of another release");
  CopyTable table;
  const auto name = CopyName::parse(taker.text());
  if (!name) damaged_copy("the table of a copy has no name");
  table.name = *name;
  table.run = taker.text();
  table.file.bytes = taker.number();
  table.file.block_bytes = taker.number();
  if (table.file.bytes < 1 || table.file.bytes > largest_image || table.file.block_bytes != copy_block_bytes)
    damaged_copy("the table of a copy gives an impossible size");
  const std::int64_t blocks = taker.number();
  if (blocks < 0 || blocks > table.file.blocks()) damaged_copy("the table of a copy has more blocks than its file");
  for (std::int64_t i = 0; i < blocks; ++i) {
    const std::int64_t block = taker.number();
    table.blocks.emplace_back(block, static_cast<std::uint64_t>(taker.number()));
  }
  table.metadata = taker.text();
  if (!taker.is_done()) damaged_copy("the table of a copy is too long");
  return table;
}

CopyTable read_copy_table(const CopyFolder& folder, const CopyName& name, const std::string& run) {
  const data::ReadOnlyFile file(folder.table_of(name));
  const std::int64_t size = file.status().bytes;
  if (size > largest_table) damaged_copy("the table of a copy has an impossible size");
  std::string bytes(static_cast<std::size_t>(size), '\0');
  file.read(bytes.data(), std::ssize(bytes), 0);
  CopyTable table = parse_copy_table(bytes);
  if (table.name != name || table.run != run) damaged_copy("the copy is of another run");
  return table;
}

void verify_copy(const std::filesystem::path& blocks, const CopyTable& table) {
  const data::ReadOnlyFile file(blocks);
  if (file.status().bytes != table.file.bytes) damaged_copy(fmt::format("{} has another size", blocks.string()));
  std::vector<char> block;
  for (const auto& [number, expected] : table.blocks) {
    if (number < 0 || number >= table.file.blocks())
      damaged_copy("the table of a copy has a block that the file does not have");
    const std::int64_t begin = number * table.file.block_bytes;
    block.resize(static_cast<std::size_t>(std::min(table.file.block_bytes, table.file.bytes - begin)));
    if (data::read_block(file, begin, block, expected) != expected)
      damaged_copy(fmt::format("{} is damaged in block {}", blocks.string(), number));
  }
}

}  // namespace nanotron::io
