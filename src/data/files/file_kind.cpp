#include "file_kind.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <system_error>

#include "nanotron/base/error.hpp"
#include "nanotron/base/files.hpp"
#include "nanotron/base/whole_path.hpp"
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

}  // namespace nanotron::data
