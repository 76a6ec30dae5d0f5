#include "data/files/stored_dataset.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <system_error>
#include <utility>

#include "nanotron/base/error.hpp"
#include "nanotron/base/files.hpp"
#include "nanotron/data/files/read_only_file.hpp"

namespace nanotron::data {
namespace {

namespace fs = std::filesystem;
using namespace std::string_view_literals;

constexpr std::int64_t looked_at = 4096;

std::string bytes_at(const ReadOnlyFile& file, std::int64_t offset, std::int64_t count) {
  std::string bytes(static_cast<std::size_t>(count), '\0');
  file.read(bytes.data(), count, offset);
  return bytes;
}

// HDF5 allows it at 0, 512, 1024, 2048, ... (after a user block).
bool has_hdf5_signature(const ReadOnlyFile& file, std::int64_t size) {
  for (std::int64_t offset = 0; offset + 8 <= size; offset = offset == 0 ? 512 : 2 * offset) {
    if (bytes_at(file, offset, 8) == "\x89HDF\r\n\x1a\n"sv) return true;
  }
  return false;
}

bool is_text(std::string_view bytes) {
  return std::none_of(bytes.begin(), bytes.end(), [](char c) {
    const auto u = static_cast<unsigned char>(c);
    return u == 0x7F || (u < 0x20 && c != '\n' && c != '\r' && c != '\t' && c != '\f' && c != '\v' && c != '\x1b');
  });
}

std::string beginning(std::string_view bytes) {
  std::string line(bytes.substr(0, bytes.find_first_of("\r\n")));
  if (line.size() > 40) {
    line.resize(40);
    while (!line.empty() && (static_cast<unsigned char>(line.back()) & 0x80U) != 0) line.pop_back();
    line += "...";
  }
  return line;
}

// Formats of text or tokens that are recognised by their first bytes.
std::string_view format_of(std::string_view bytes) {
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 10> magics{
      {{"MMIDIDX\0\0"sv, "the index (.idx) of a Megatron-LM data set"},
       {"PAR1"sv, "a Parquet file"},
       {"ARROW1"sv, "an Arrow file"},
       {"\xFF\xFF\xFF\xFF"sv, "an Arrow file"},
       {"\x93NUMPY"sv, "a NumPy array"},
       {"PK\x03\x04"sv, "a zip archive"},
       {"\x1F\x8B"sv, "a gzip file"},
       {"\x28\xB5\x2F\xFD"sv, "a Zstandard file"},
       {"\x88\xD8\x34\x01"sv, "a token file of llm.c (GPT-2's tokenizer)"},      // 20240520
       {"\xA1\xD9\x34\x01"sv, "a token file of llm.c (Llama 3's tokenizer)"}}};  // 20240801
  for (const auto& [magic, name] : magics) {
    if (bytes.starts_with(magic)) return name;
  }
  return "";
}

std::string tokenize(const std::string& what) {
  return fmt::format("python3 tools/nanotron_tokenize.py {} --output tokens.h5, then data%path = 'tokens.h5'", what);
}

}  // namespace

ForeignFile foreign_file(const fs::path& path) {
  const std::string name = path.string(), retokenize = tokenize("<texts>");
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (error && exit_code_of(error.value()) == ExitCode::system_error) {
    fail(ExitCode::system_error, {.what = "the token file cannot be read",
                                  .found = error.message(),
                                  .where = whole_path(path),
                                  .change = "check the path and its permissions"});
  }
  if (error) return {error.message(), "make one with tools/nanotron_tokenize.py, or correct the path"};
  if (fs::is_directory(status)) return {"a directory", "if it holds texts: " + tokenize(name)};
  if (!fs::is_regular_file(status))
    return {"not a regular file", "correct the path, or create the file: " + retokenize};
  const ReadOnlyFile file(path);
  const std::int64_t size = file.status().bytes;
  if (size == 0) return {"an empty file", "recreate it: " + retokenize};
  if (has_hdf5_signature(file, size)) return {};
  const std::string bytes = bytes_at(file, 0, std::min(size, looked_at));
  if (bytes.starts_with("version https://git-lfs")) {
    return {"a Git LFS pointer instead of the file", "fetch the file itself: git lfs pull"};
  }
  if (is_text(bytes)) return {fmt::format("a text file that begins with \"{}\"", beginning(bytes)), tokenize(name)};
  if (!format_of(bytes).empty()) return {std::string(format_of(bytes)), "from the texts it was made of: " + retokenize};
  const std::string others =
      "token ids of another program can be put into the dataset /tokens (doc/data.md); "
      "from texts: " +
      retokenize;
  fs::path index = path;
  if (files::exists(index.replace_extension(".idx"))) return {"the data (.bin) of a Megatron-LM data set", others};
  if (path.extension() == ".bin") return {"bare numbers (.bin), as nanoGPT and Megatron-LM write token ids", others};
  return {"a binary file of another format", "correct the path, or create the file: " + retokenize};
}

namespace {

constexpr std::int64_t largest_chunk = std::int64_t{64} << 20, kept_at_most = std::int64_t{64} << 20;  // bytes

constexpr index_t packed_at_most = 1100;  // values' bytes per stored byte of a filtered dataset: 1032 of deflate

hid_t native_type(int width) {
  return width == 1   ? H5T_NATIVE_UINT8
         : width == 2 ? H5T_NATIVE_UINT16
         : width == 4 ? H5T_NATIVE_UINT32
                      : H5T_NATIVE_UINT64;
}

class PlainValues final : public BlockSource {
 public:
  PlainValues(std::shared_ptr<const ReadOnlyFile> disk, const std::string& name, std::int64_t offset)
      : disk_(std::move(disk)), name_(fmt::format("{} of {}", name, disk_->name())), offset_(offset) {}
  const std::string& name() const override { return name_; }
  void read(void* target, std::int64_t bytes, std::int64_t position) const override {
    disk_->read(target, bytes, offset_ + position);
  }
  void drop_from_cache(std::int64_t bytes, std::int64_t position) const override {
    disk_->drop_from_cache(bytes, offset_ + position);
  }

 private:
  std::shared_ptr<const ReadOnlyFile> disk_;
  std::string name_;
  std::int64_t offset_;
};

class ConvertedValues final : public BlockSource {
 public:
  ConvertedValues(hdf5::Dataset dataset, const std::string& name, int width, std::shared_ptr<const ReadOnlyFile> disk)
      : ConvertedValues(name, width, std::move(disk)) {
    hdf5::File file(H5Iget_file_id(dataset.id()));
    access_ = access_to(dataset);
    dataset = {};  // HDF5 makes a cache for what is opened first
    held_ = opened(std::move(file));
  }
  ConvertedValues(const std::string& name, int width, std::shared_ptr<const ReadOnlyFile> disk)
      : path_(name), disk_(std::move(disk)), name_(fmt::format("{} of {}", name, disk_->name())), width_(width) {}
  ~ConvertedValues() override {
    if (!disk_->stays_open()) disk_->open_files()->hdf5.close(this);
  }

  const std::string& name() const override { return name_; }
  void read(void* target, std::int64_t bytes, std::int64_t position) const override {
    const std::shared_ptr<const Open> open = now_open();
    const hsize_t start = static_cast<hsize_t>(position / width_), extent = static_cast<hsize_t>(bytes / width_);
    const hdf5::Dataspace file_space(H5Dget_space(open->dataset.id()));
    const hdf5::Dataspace memory_space(H5Screate_simple(1, &extent, nullptr));
    H5Sselect_hyperslab(file_space.id(), H5S_SELECT_SET, &start, nullptr, &extent, nullptr);
    hdf5::check(
        H5Dread(open->dataset.id(), native_type(width_), memory_space.id(), file_space.id(), H5P_DEFAULT, target),
        ExitCode::data_error, fmt::format("reading {}", name_));
  }
  // HDF5 does not say where its chunks are: the advice is about the whole file.
  void drop_from_cache(std::int64_t, std::int64_t) const override {
    disk_->drop_from_cache(0, 0);
    if (!disk_->stays_open()) return disk_->open_files()->hdf5.close(this);
    hdf5::File file(H5Iget_file_id(held_->dataset.id()));
    held_.reset();
    held_ = opened(std::move(file));
  }

 private:
  struct Open {
    hdf5::File file;
    hdf5::Dataset dataset;
  };

  // A cache of chunks: all of a small dataset that stays open, else two of them.
  hdf5::PropertyList access_to(const hdf5::Dataset& dataset) const {
    constexpr std::size_t slots = 1009;  // for the chunks of a cache, which are larger than HDF5's own
    hdf5::PropertyList access(H5Pcreate(H5P_DATASET_ACCESS));
    const hdf5::Datatype type(H5Dget_type(dataset.id()));
    const hdf5::Dataspace space(H5Dget_space(dataset.id()));
    const std::int64_t chunk = packed_chunk(dataset, path_, *disk_);
    const auto all = H5Sget_simple_extent_npoints(space.id()) * static_cast<std::int64_t>(H5Tget_size(type.id()));
    const std::int64_t kept = disk_->stays_open() ? kept_unpacked(chunk == 0 ? 1 : chunk, all) : 2 * chunk;
    if (chunk > 0) H5Pset_chunk_cache(access.id(), slots, static_cast<std::size_t>(kept), H5D_CHUNK_CACHE_W0_DEFAULT);
    return access;
  }

  std::shared_ptr<Open> opened(hdf5::File file) const {
    hdf5::Dataset dataset(hdf5::check(H5Dopen2(file.id(), path_.c_str(), access_.id()), ExitCode::data_error,
                                      fmt::format("opening {}", name_)));
    return std::make_shared<Open>(Open{std::move(file), std::move(dataset)});
  }

  std::shared_ptr<const Open> now_open() const {
    if (disk_->stays_open()) return held_;
    return std::static_pointer_cast<const Open>(disk_->open_files()->hdf5.get(this, [&]() -> std::shared_ptr<void> {
      hdf5::File file = hdf5::open_read_only(disk_->name());
      access_ = access_to(hdf5::open_dataset(file.id(), path_.substr(1), disk_->name()));
      return opened(std::move(file));
    }));
  }

  std::string path_;  // in the file
  std::shared_ptr<const ReadOnlyFile> disk_;
  std::string name_;
  int width_;
  mutable hdf5::PropertyList access_;
  mutable std::shared_ptr<Open> held_;  // of a file that stays open
};

[[noreturn]] void never_written(const std::string& name, const std::string& found, const ReadOnlyFile& disk) {
  fail(ExitCode::data_error, {.what = fmt::format("{} was not written completely", name),
                              .expected = "values in the file: HDF5 reads missing ones as zeros",
                              .found = found,
                              .where = disk.name(),
                              .change = "recreate the file, and let the program that writes it finish"});
}

// A chunk that was never written has no place in the file.
void require_all_chunks(const hdf5::Dataset& dataset, const hdf5::PropertyList& creation, const std::string& name,
                        index_t size, const ReadOnlyFile& disk) {
#if H5_VERSION_GE(1, 10, 5)
  hsize_t chunk = 1, found = 0;
  const hdf5::Dataspace space(H5Dget_space(dataset.id()));
  if (H5Pget_chunk(creation.id(), 1, &chunk) != 1 || chunk == 0 ||
      H5Dget_num_chunks(dataset.id(), space.id(), &found) < 0)
    hdf5::fail(ExitCode::data_error, fmt::format("{}: counting the chunks of {}", disk.name(), name));
  const hsize_t all = (static_cast<hsize_t>(size) - 1) / chunk + 1;
  if (found < all) never_written(name, fmt::format("{} of {} chunks", found, all), disk);
#else
  (void)dataset, (void)creation, (void)name, (void)size, (void)disk;
#endif
}

}  // namespace

int unsigned_bytes(const hdf5::Datatype& type) {
  if (H5Tget_class(type.id()) != H5T_INTEGER || H5Tget_sign(type.id()) != H5T_SGN_NONE || !hdf5::is_plain_number(type))
    return 0;
  return static_cast<int>(H5Tget_size(type.id()));
}

std::string words_of(const hdf5::Datatype& type) {
  const H5T_class_t kind = H5Tget_class(type.id());
  const char* const words = kind == H5T_INTEGER  ? "signed integers"
                            : kind == H5T_FLOAT  ? "real numbers"
                            : kind == H5T_STRING ? "strings"
                                                 : "another type";
  return fmt::format("{} of {} bytes", unsigned_bytes(type) > 0 ? "unsigned integers" : words, H5Tget_size(type.id()));
}

index_t checked_length(const hdf5::Dataset& dataset, const std::string& name, const ReadOnlyFile& disk) {
  const std::vector<index_t> shape = hdf5::checked_shape(dataset, name, disk.name());
  if (shape.size() != 1)
    fail(ExitCode::data_error, {fmt::format("{} has the wrong shape", name), "one dimension",
                                fmt::format("{} dimensions", shape.size()), disk.name(), ""});
  const index_t size = shape[0];
  if (size == 0) return 0;
  const hdf5::PropertyList creation(H5Dget_create_plist(dataset.id()));
  const hdf5::Datatype type(H5Dget_type(dataset.id()));
  const auto stored = static_cast<index_t>(H5Dget_storage_size(dataset.id()));
  if (stored == 0) hdf5::require_readable(dataset.id(), fmt::format("reading the size of {}", name));
  const auto bytes = static_cast<index_t>(H5Tget_size(type.id()));
  if (stored == 0) never_written(name, fmt::format("{} values, but no stored bytes", size), disk);
  const bool chunked = H5Pget_layout(creation.id()) == H5D_CHUNKED;
  const bool filtered = chunked && H5Pget_nfilters(creation.id()) > 0;
  if (chunked && size > 0) require_all_chunks(dataset, creation, name, size, disk);
  const index_t room = std::min(stored, disk.status().bytes);
  if (stored < 0 || bytes <= 0 || size < 0 || size / (filtered ? packed_at_most : 1) > room / bytes)
    fail(ExitCode::data_error, {.what = fmt::format("{} is larger than its file", name),
                                .expected = fmt::format("at most {} values, which the file can hold", room / bytes),
                                .found = fmt::format("{}", size),
                                .where = disk.name(),
                                .change = "the file is truncated or damaged: copy it again, or recreate it"});
  return size;
}

std::optional<std::int64_t> plain_offset(const hdf5::Dataset& dataset, const std::string& name, int width, index_t size,
                                         const ReadOnlyFile& disk) {
  const hdf5::Datatype type(H5Dget_type(dataset.id()));
  const haddr_t offset = H5Dget_offset(dataset.id());  // undefined unless contiguous
  const hdf5::PropertyList creation(H5Dget_create_plist(dataset.id()));
  if (H5Pget_layout(creation.id()) != H5D_CONTIGUOUS || H5Tequal(type.id(), native_type(width)) <= 0 ||
      offset == HADDR_UNDEF)
    return std::nullopt;
  const std::int64_t begin = static_cast<std::int64_t>(offset), found = disk.status().bytes;
  if (begin < 0 || begin > found - size * width)
    fail(ExitCode::data_error,
         {"the token file is truncated", fmt::format("{} bytes from byte {} on, for {}", size * width, offset, name),
          fmt::format("{} bytes", found), disk.name(), ""});
  return begin;
}

std::int64_t packed_chunk(const hdf5::Dataset& dataset, const std::string& name, const ReadOnlyFile& disk) {
  hsize_t values = 0;
  const hdf5::PropertyList creation(H5Dget_create_plist(dataset.id()));
  const hdf5::Datatype type(H5Dget_type(dataset.id()));
  if (H5Pget_layout(creation.id()) != H5D_CHUNKED || H5Pget_nfilters(creation.id()) <= 0 ||
      H5Pget_chunk(creation.id(), 1, &values) != 1)
    return 0;
  const auto bytes = static_cast<std::int64_t>(values * H5Tget_size(type.id()));
  if (bytes <= largest_chunk) return bytes;
  fail(ExitCode::data_error,
       {.what = fmt::format("the compressed chunks of {} are too large: each sample decompresses one", name),
        .expected = fmt::format("chunks of at most {} bytes, or no filters", largest_chunk),
        .found = fmt::format("{} bytes", bytes),
        .where = disk.name(),
        .change = fmt::format("h5repack -f NONE -l CONTI {} new.h5", disk.name())});
}

std::int64_t kept_unpacked(std::int64_t chunk, std::int64_t all) {
  constexpr std::int64_t of_hdf5 = 1 << 20;  // by itself
  const std::int64_t chunks = (all - 1) / chunk + 1;
  return std::max(of_hdf5, chunks * chunk <= kept_at_most ? chunks * chunk : 2 * chunk);
}

std::unique_ptr<BlockSource> open_plain(const std::string& name, std::int64_t offset,
                                        std::shared_ptr<const ReadOnlyFile> disk) {
  return std::make_unique<PlainValues>(std::move(disk), name, offset);
}

std::unique_ptr<BlockSource> open_converted(hdf5::Dataset dataset, const std::string& name, int width,
                                            std::shared_ptr<const ReadOnlyFile> disk) {
  return std::make_unique<ConvertedValues>(std::move(dataset), name, width, std::move(disk));
}

std::unique_ptr<BlockSource> open_converted_later(const std::string& name, int width,
                                                  std::shared_ptr<const ReadOnlyFile> disk) {
  return std::make_unique<ConvertedValues>(name, width, std::move(disk));
}

}  // namespace nanotron::data
