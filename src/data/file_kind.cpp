#include "file_kind.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <string_view>
#include <system_error>

#include "nanotron/base/error.hpp"

namespace nanotron::data {
namespace {

namespace fs = std::filesystem;
using namespace std::string_view_literals;

constexpr std::size_t looked_at = 4096;

std::string bytes_at(const fs::path& path, std::uintmax_t offset, std::size_t count) {
  std::ifstream file(path, std::ios::binary);
  file.seekg(static_cast<std::streamoff>(offset));
  std::string bytes(count, '\0');
  file.read(bytes.data(), static_cast<std::streamsize>(count));
  bytes.resize(static_cast<std::size_t>(std::max<std::streamsize>(file.gcount(), 0)));
  return bytes;
}

// HDF5 allows it at 0, 512, 1024, 2048, ... (after a user block).
bool has_hdf5_signature(const fs::path& path, std::uintmax_t size) {
  for (std::uintmax_t offset = 0; offset + 8 <= size; offset = offset == 0 ? 512 : 2 * offset) {
    if (bytes_at(path, offset, 8) == "\x89HDF\r\n\x1a\n"sv) return true;
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
       {"\x88\xD8\x34\x01"sv, "a token file of llm.c (GPT-2's tokenizer)"},  // 20240520
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
  if (fs::is_directory(path, error)) return {"a directory", "if it holds texts: " + tokenize(name)};
  if (!fs::exists(path, error)) {
    return {error ? error.message() : "No such file or directory",
            "make one with tools/nanotron_tokenize.py, or correct the path"};
  }
  if (!fs::is_regular_file(path, error))
    return {"no regular file", "correct the path, or make the file: " + retokenize};
  const std::uintmax_t size = fs::file_size(path, error);
  if (error) return {error.message(), "check the path and its permissions"};
  if (size == 0) return {"an empty file", "make it again: " + retokenize};
  if (!std::ifstream(path, std::ios::binary)) return {"a file that may not be read", "check its permissions"};
  if (has_hdf5_signature(path, size)) return {};
  const std::string bytes = bytes_at(path, 0, looked_at);
  if (bytes.starts_with("version https://git-lfs")) {
    return {"a pointer of Git LFS in place of the file", "fetch the file itself: git lfs pull"};
  }
  if (is_text(bytes)) return {fmt::format("a text file that begins with \"{}\"", beginning(bytes)), tokenize(name)};
  if (!format_of(bytes).empty()) return {std::string(format_of(bytes)), "from the texts it was made of: " + retokenize};
  const std::string others =
      "token ids of another program can be put into the dataset /tokens (doc/token_files.md); "
      "from texts: " +
      retokenize;
  fs::path index = path;
  if (fs::exists(index.replace_extension(".idx"), error)) return {"the data (.bin) of a Megatron-LM data set", others};
  if (path.extension() == ".bin") return {"bare numbers (.bin), as nanoGPT and Megatron-LM write token ids", others};
  return {"a binary file of another format", "correct the path, or make the file: " + retokenize};
}

}  // namespace nanotron::data
