#include "nanotron/data/token_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <limits>
#include <map>

#include "file_kind.hpp"
#include "nanotron/base/error.hpp"

namespace nanotron::data {
namespace {

constexpr index_t vocabulary_limit = index_t{1} << 24;
constexpr index_t vocabulary_bytes_limit = index_t{1} << 30;

std::vector<index_t> vector_shape(const hdf5::Dataset& dataset, const std::string& name,
                                  const std::string& file) {
  const std::vector<index_t> shape = hdf5::checked_shape(dataset, name, file);
  if (shape.size() != 1)
    fail(ExitCode::data_error, {fmt::format("{} has the wrong shape", name), "one dimension",
                                fmt::format("{} dimensions", shape.size()), file, ""});
  return shape;
}

// Bytes of an unsigned integer type; 0 for other types.
int unsigned_bytes(const hdf5::Datatype& type) {
  if (H5Tget_class(type.id()) != H5T_INTEGER || H5Tget_sign(type.id()) != H5T_SGN_NONE) return 0;
  return static_cast<int>(H5Tget_size(type.id()));
}

std::string words_of(const hdf5::Datatype& type) {
  const H5T_class_t kind = H5Tget_class(type.id());
  const char* const words = kind == H5T_INTEGER ? "signed integers"
                            : kind == H5T_FLOAT ? "real numbers"
                            : kind == H5T_STRING ? "strings"
                                                 : "another type";
  return fmt::format("{} of {} bytes", unsigned_bytes(type) > 0 ? "unsigned integers" : words, H5Tget_size(type.id()));
}

hdf5::File open_whole(const std::filesystem::path& path) {
  try {
    return hdf5::open_read_only(path);
  } catch (const Error& error) {
    fail(ExitCode::data_error, {"the token file is truncated or damaged", "a whole HDF5 file", reason(error),
                                path.string(), "copy it again, or make it again with tools/nanotron_tokenize.py"});
  }
}

// Widens in place `count` ids of type T that are stored in the last count * sizeof(T) bytes of out.
template <class T>
void widen(std::int32_t* out, index_t count) {
  if constexpr (sizeof(T) < sizeof(std::int32_t)) {
    auto* bytes = reinterpret_cast<unsigned char*>(out);
    const auto* raw = bytes + count * static_cast<index_t>(sizeof(std::int32_t) - sizeof(T));
    for (index_t i = 0; i < count; ++i) {
      T value;
      std::memcpy(&value, raw + i * static_cast<index_t>(sizeof(T)), sizeof value);
      const auto wide = static_cast<std::int32_t>(value);
      std::memcpy(bytes + i * static_cast<index_t>(sizeof wide), &wide, sizeof wide);
    }
  }
}

}  // namespace

TokenFile::TokenFile(const std::filesystem::path& path) : path_(path.string()) {
  const ForeignFile other = foreign_file(path);
  if (!other.found.empty())
    fail(ExitCode::data_error, {"the token file cannot be read", "an HDF5 file", other.found, path_, other.change});
  file_ = open_whole(path);
  open_tokens();
  eos_token_id_ = hdf5::read_integer(file_.id(), "eos_token_id", path_);
  unigram_entropy_ = hdf5::read_real(file_.id(), "unigram_entropy", path_);
  tokenizer_.name = hdf5::read_string(file_.id(), "tokenizer", path_).value_or("");
  tokenizer_.sha256 = hdf5::read_string(file_.id(), "tokenizer_sha256", path_).value_or("");
  vocab_size_ = hdf5::read_integer(file_.id(), "vocab_size", path_).value_or(0);
  if (vocab_size_ < 0 || vocab_size_ > std::numeric_limits<std::int32_t>::max())
    fail(ExitCode::data_error, {"the attribute vocab_size is out of range", "1 to 2147483647",
                                fmt::format("{}", vocab_size_), path_, ""});
  open_documents();
  loss_mask_ = LossMask(file_.id(), path_, size_);
  read_vocabulary();
  if (vocab_size_ == 0 && has_vocabulary()) vocab_size_ = index_t(vocabulary_offsets_.size()) - 1;
  id_limit_ = vocab_size_ > 0 ? vocab_size_ : std::numeric_limits<std::int32_t>::max();
  if (eos_token_id_ && (*eos_token_id_ < 0 || *eos_token_id_ >= id_limit_))
    fail(ExitCode::data_error,
         {"the attribute eos_token_id is outside of the vocabulary",
          fmt::format("0 to {}", id_limit_ - 1), fmt::format("{}", *eos_token_id_), path_, ""});
  open_plain(path);  // last: nothing throws after the descriptor is open
}

TokenFile::~TokenFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

TokenFile::TokenFile(TokenFile&& other) noexcept
    : path_(std::move(other.path_)),
      file_(std::move(other.file_)),
      tokens_(std::move(other.tokens_)),
      loss_mask_(std::move(other.loss_mask_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      offset_(other.offset_),
      token_bytes_(other.token_bytes_),
      size_(other.size_),
      vocab_size_(other.vocab_size_),
      id_limit_(other.id_limit_),
      number_of_documents_(other.number_of_documents_),
      eos_token_id_(other.eos_token_id_),
      unigram_entropy_(other.unigram_entropy_),
      tokenizer_(std::move(other.tokenizer_)),
      vocabulary_offsets_(std::move(other.vocabulary_offsets_)),
      vocabulary_bytes_(std::move(other.vocabulary_bytes_)) {}

void TokenFile::open_tokens() {
  tokens_ = hdf5::open_dataset(file_.id(), "tokens", path_);
  size_ = vector_shape(tokens_, "/tokens", path_)[0];
  const hdf5::Datatype type(H5Dget_type(tokens_.id()));
  token_bytes_ = unsigned_bytes(type);
  if (token_bytes_ != 2 && token_bytes_ != 4)
    fail(ExitCode::data_error,
         {"/tokens has the wrong type", "uint16 or uint32",
          words_of(type), path_, "write the file with tools/nanotron_tokenize.py"});
  if (size_ == 0) fail(ExitCode::data_error, {"/tokens is empty", "", "", path_, ""});
}

void TokenFile::open_documents() {
  if (!hdf5::exists(file_.id(), "documents")) return;
  const auto documents = hdf5::open_dataset(file_.id(), "documents", path_);
  number_of_documents_ = vector_shape(documents, "/documents", path_)[0];
  const hdf5::Datatype type(H5Dget_type(documents.id()));
  if (unsigned_bytes(type) == 0)
    fail(ExitCode::data_error, {"/documents has the wrong type", "uint64", words_of(type), path_,
                                "write the file with tools/nanotron_tokenize.py"});
}

void TokenFile::open_plain(const std::filesystem::path& path) {
  const hdf5::Datatype type(H5Dget_type(tokens_.id()));
  const hid_t native = token_bytes_ == 2 ? H5T_NATIVE_UINT16 : H5T_NATIVE_UINT32;
  const haddr_t offset = H5Dget_offset(tokens_.id());  // undefined unless contiguous
  const hdf5::PropertyList creation(H5Dget_create_plist(tokens_.id()));
  if (H5Pget_layout(creation.id()) != H5D_CONTIGUOUS || H5Tequal(type.id(), native) <= 0 ||
      offset == HADDR_UNDEF)
    return;
  const auto file_bytes = static_cast<std::int64_t>(std::filesystem::file_size(path));
  if (static_cast<std::int64_t>(offset) > file_bytes - size_ * token_bytes_)
    fail(ExitCode::data_error,
         {"the token file is truncated",
          fmt::format("{} bytes or more", static_cast<std::int64_t>(offset) + size_ * token_bytes_),
          fmt::format("{} bytes", file_bytes), path_, ""});
  offset_ = static_cast<std::int64_t>(offset);
  descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
}

void TokenFile::read_vocabulary() {
  if (!hdf5::exists(file_.id(), "vocabulary/offsets") ||
      !hdf5::exists(file_.id(), "vocabulary/bytes"))
    return;
  const auto offsets = hdf5::open_dataset(file_.id(), "vocabulary/offsets", path_);
  const auto bytes = hdf5::open_dataset(file_.id(), "vocabulary/bytes", path_);
  const index_t n = vector_shape(offsets, "/vocabulary/offsets", path_)[0];
  const index_t total = vector_shape(bytes, "/vocabulary/bytes", path_)[0];
  const hdf5::Datatype type(H5Dget_type(bytes.id()));
  const hdf5::Datatype offset_type(H5Dget_type(offsets.id()));
  const auto refuse = [&](const std::string& found) {
    fail(ExitCode::data_error,
         {"the vocabulary is damaged", "uint8 bytes, and increasing uint64 offsets from 0 to the number of bytes",
          found, path_, ""});
  };
  if (unsigned_bytes(type) != 1) refuse("/vocabulary/bytes of another type");
  if (unsigned_bytes(offset_type) == 0) refuse("/vocabulary/offsets of another type");
  if (n < 2 || n > vocabulary_limit || total > vocabulary_bytes_limit)
    refuse(fmt::format("{} offsets, {} bytes", n, total));
  vocabulary_offsets_.resize(static_cast<std::size_t>(n));
  vocabulary_bytes_.resize(static_cast<std::size_t>(total));
  hdf5::check(H5Dread(offsets.id(), H5T_NATIVE_UINT64, H5S_ALL, H5S_ALL, H5P_DEFAULT,
                      vocabulary_offsets_.data()),
              ExitCode::data_error, fmt::format("{}: reading /vocabulary/offsets", path_));
  hdf5::check(H5Dread(bytes.id(), H5T_NATIVE_UINT8, H5S_ALL, H5S_ALL, H5P_DEFAULT,
                      vocabulary_bytes_.data()),
              ExitCode::data_error, fmt::format("{}: reading /vocabulary/bytes", path_));
  if (vocabulary_offsets_.front() != 0 ||
      vocabulary_offsets_.back() != static_cast<std::uint64_t>(total) ||
      !std::is_sorted(vocabulary_offsets_.begin(), vocabulary_offsets_.end()))
    refuse("other offsets");
  tokenizer_.vocabulary = vocabulary_hash(vocabulary_offsets_, vocabulary_bytes_);
}

std::vector<std::uint64_t> TokenFile::read_documents() const {
  std::vector<std::uint64_t> offsets(static_cast<std::size_t>(number_of_documents_));
  if (offsets.empty()) return offsets;
  const auto documents = hdf5::open_dataset(file_.id(), "documents", path_);
  hdf5::check(H5Dread(documents.id(), H5T_NATIVE_UINT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, offsets.data()),
              ExitCode::data_error, fmt::format("{}: reading /documents", path_));
  return offsets;
}

void TokenFile::require_vocab_size(index_t model_vocab_size) {
  if (vocab_size_ > model_vocab_size)
    fail(ExitCode::data_error,
         {"the vocabulary of the token file is larger than that of the model",
          fmt::format("at most {} (model%vocab_size)", model_vocab_size), fmt::format("{}", vocab_size_), path_,
          fmt::format("a token file of the model's tokenizer; or, for a model that begins from random weights, "
                      "model%vocab_size = {} or more",
                      vocab_size_)});
  id_limit_ = model_vocab_size;
}

void TokenFile::read_raw(index_t first, index_t count, std::int32_t* out) const {
  if (descriptor_ < 0) {
    const hsize_t start = static_cast<hsize_t>(first), extent = static_cast<hsize_t>(count);
    const hdf5::Dataspace file_space(H5Dget_space(tokens_.id()));
    const hdf5::Dataspace memory_space(H5Screate_simple(1, &extent, nullptr));
    H5Sselect_hyperslab(file_space.id(), H5S_SELECT_SET, &start, nullptr, &extent, nullptr);
    hdf5::check(H5Dread(tokens_.id(), H5T_NATIVE_INT32, memory_space.id(), file_space.id(),
                        H5P_DEFAULT, out),
                ExitCode::data_error, fmt::format("{}: reading /tokens", path_));
    return;
  }
  char* target = reinterpret_cast<char*>(out) + count * (4 - token_bytes_);
  std::int64_t left = count * token_bytes_, position = offset_ + first * token_bytes_;
  while (left > 0) {
    const ssize_t got = ::pread(descriptor_, target, static_cast<std::size_t>(left), position);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0)
      fail(ExitCode::data_error,
           {"the token file cannot be read", "",
            got == 0 ? "end of file: it was truncated while in use" : std::strerror(errno), path_, ""});
    target += got;
    position += got;
    left -= got;
  }
  if (token_bytes_ == 2) widen<std::uint16_t>(out, count);
}

void TokenFile::require_inside(index_t first, index_t count) const {
  if (first < 0 || count < 0 || first > size_ - count)
    fail(ExitCode::data_error,
         {"tokens outside of the file were asked for", fmt::format("0 to {}", size_ - 1),
          fmt::format("{} to {}", first, first + count - 1), path_, ""});
}

void TokenFile::read_unchecked(index_t first, index_t count, std::int32_t* out) const {
  require_inside(first, count);
  read_raw(first, count, out);
}

void TokenFile::read(index_t first, index_t count, std::int32_t* out) const {
  require_inside(first, count);
  read_raw(first, count, out);
  const auto limit = static_cast<std::uint32_t>(id_limit_);
  std::uint32_t largest = 0;
  for (index_t i = 0; i < count; ++i)
    largest = std::max(largest, std::bit_cast<std::uint32_t>(out[i]));
  if (largest < limit) return;
  for (index_t i = 0; i < count; ++i)
    if (std::bit_cast<std::uint32_t>(out[i]) >= limit)
      fail(ExitCode::data_error,
           {"a token id is outside of the vocabulary", fmt::format("0 to {}", limit - 1),
            fmt::format("{} at position {} of /tokens", std::bit_cast<std::uint32_t>(out[i]),
                        first + i),
            path_, "check vocab_size and the tokenizer the file was made with"});
}

std::string_view TokenFile::word(std::size_t id) const {
  const std::uint64_t begin = vocabulary_offsets_[id];
  return std::string_view(vocabulary_bytes_).substr(begin, vocabulary_offsets_[id + 1] - begin);
}

std::string TokenFile::decode(std::span<const std::int32_t> ids) const {
  const index_t known = index_t(vocabulary_offsets_.size()) - 1;
  std::string text;
  for (const std::int32_t id : ids) {
    if (id < 0 || id >= known) {
      text += fmt::format("<{}>", id);
      continue;
    }
    text.append(word(static_cast<std::size_t>(id)));
  }
  return text;
}

std::vector<std::int32_t> TokenFile::encode(std::string_view text) const {
  std::map<std::string_view, std::int32_t> ids;
  std::size_t longest = 0;
  for (std::size_t i = 0; i + 1 < vocabulary_offsets_.size(); ++i) {
    const std::string_view token = word(i);
    if (token.empty()) continue;
    ids.emplace(token, static_cast<std::int32_t>(i));
    longest = std::max(longest, token.size());
  }
  std::vector<std::int32_t> result;
  while (!text.empty()) {
    auto found = ids.end();
    std::size_t length = std::min(longest, text.size());
    while (length > 0 && (found = ids.find(text.substr(0, length))) == ids.end()) --length;
    if (length == 0)
      fail(ExitCode::data_error,
           {"the text cannot be written with the vocabulary of the token file",
            "a token for each byte",
            has_vocabulary() ? fmt::format("no token begins with byte {}",
                                           static_cast<unsigned char>(text.front()))
                             : "no vocabulary in the file",
            path_, "give the prompt as token ids"});
    result.push_back(found->second);
    text.remove_prefix(length);
  }
  return result;
}

bool TokenFile::is_ambiguous(std::string_view text) const {
  std::map<std::string_view, int> words;  // token bytes, and how many ids have them
  std::size_t longest = 0;
  for (std::size_t i = 0; i + 1 < vocabulary_offsets_.size(); ++i) {
    if (word(i).empty()) continue;
    ++words[word(i)];
    longest = std::max(longest, word(i).size());
  }
  std::vector<int> ways(text.size() + 1, 0);  // ways[n]: tokenizations of the first n bytes; 2: two or more
  ways[0] = 1;
  for (std::size_t end = 1; end <= text.size(); ++end) {
    for (std::size_t length = 1; length <= std::min(longest, end) && ways[end] < 2; ++length) {
      const auto found = words.find(text.substr(end - length, length));
      if (found != words.end()) ways[end] = std::min(2, ways[end] + ways[end - length] * found->second);
    }
  }
  return ways.back() > 1;
}

}  // namespace nanotron::data
