#include "nanotron/data/tokens/token_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "data/files/stored_dataset.hpp"
#include "nanotron/base/error.hpp"
#include "nanotron/base/files.hpp"

namespace nanotron::data {
namespace {

constexpr index_t vocabulary_limit = index_t{1} << 24;
constexpr index_t vocabulary_bytes_limit = index_t{1} << 30;
constexpr std::int64_t smallest_hole = std::int64_t{1} << 20;  // bytes: some file systems leave out short runs of zeros

hdf5::File open_whole(const std::filesystem::path& path) {
  try {
    return hdf5::open_read_only(path);
  } catch (const Error& error) {
    if (error.exit_code() == ExitCode::system_error) throw;
    fail(ExitCode::data_error, {"the token file is truncated or damaged", "a complete HDF5 file", reason(error),
                                whole_path(path), "copy it again, or recreate it with tools/nanotron_tokenize.py"});
  }
}

std::shared_ptr<const ReadOnlyFile> open_disk(const std::filesystem::path& path) {
  const ForeignFile other = foreign_file(path);
  if (!other.found.empty())
    fail(ExitCode::data_error,
         {"the token file cannot be read", "an HDF5 file", other.found, whole_path(path), other.change});
  return std::make_shared<const ReadOnlyFile>(path);
}

template <class T>
void widen(const char* from, index_t count, std::int32_t* out) {
  for (index_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, from + i * static_cast<index_t>(sizeof value), sizeof value);
    out[i] = static_cast<std::int32_t>(value);
  }
}

void widen(int bytes, const char* from, index_t count, std::int32_t* out) {
  if (bytes == 2) return widen<std::uint16_t>(from, count, out);
  widen<std::uint32_t>(from, count, out);
}

std::uint64_t hash_of(const std::vector<std::uint64_t>& values) {
  return block_hash({reinterpret_cast<const char*>(values.data()), values.size() * sizeof(std::uint64_t)});
}

}  // namespace

TokenFile::TokenFile(const std::filesystem::path& path, Hashes hashes)
    : path_(path.string()), disk_(open_disk(path)), opened_(disk_->status()), file_(open_whole(path)) {
  open_tokens();
  read_attributes();
  open_documents();
  open_loss_mask();
  read_vocabulary();
  if (vocab_size_ == 0 && has_vocabulary()) vocab_size_ = index_t(vocabulary_offsets_.size()) - 1;
  set_id_limit();
  if (eos_token_id_ && (*eos_token_id_ < 0 || *eos_token_id_ >= id_limit_))
    fail(ExitCode::data_error, {"the attribute eos_token_id is outside of the vocabulary",
                                fmt::format("0 to {}", id_limit_ - 1), fmt::format("{}", *eos_token_id_), path_, ""});
  if (hashes == Hashes::ignored) return;
  open_hashes();
  if (!hashes_.exist()) require_written();
}

TokenFile::TokenFile(const TokenHead& head, std::shared_ptr<OpenFiles> open_files)
    : path_(head.path),
      disk_(std::make_shared<const ReadOnlyFile>(head.path, head.status, std::move(open_files))),
      opened_(head.status),
      hashes_(head.hashes),
      metadata_(head.metadata),
      vocab_size_(head.vocab_size),
      eos_token_id_(head.eos_token_id),
      bos_token_id_(head.bos_token_id),
      unigram_entropy_(head.unigram_entropy),
      tokenizer_(head.tokenizer) {
  set_id_limit();
  const auto array = [&](const StoredArray::Place& place, const StoredArray::Place& hashes, const std::string& name) {
    StoredArray made(place, "/" + name, opened_, disk_);
    if (hashes.size >= 0) made.compare_with({hashes, "/hashes/" + name, opened_, disk_}, hashes_.block);
    return made;
  };
  tokens_ = array(head.tokens, head.token_hashes, "tokens");
  documents_ = array(head.documents, head.document_hashes, "documents");
  if (head.loss_mask.size >= 0)
    loss_mask_ = LossMask(array(head.loss_mask, head.loss_mask_hashes, "loss_mask"), path_, size());
}

TokenHead TokenFile::head() const {
  return {.path = path_,
          .status = opened_,
          .tokens = tokens_.place(),
          .documents = documents_.place(),
          .loss_mask = loss_mask_.values().place(),
          .token_hashes = tokens_.place_of_hashes(),
          .document_hashes = documents_.place_of_hashes(),
          .loss_mask_hashes = loss_mask_.values().place_of_hashes(),
          .hashes = hashes_,
          .metadata = metadata_hash(),
          .vocab_size = vocab_size_,
          .eos_token_id = eos_token_id_,
          .bos_token_id = bos_token_id_,
          .unigram_entropy = unigram_entropy_,
          .tokenizer = tokenizer_};
}

void TokenFile::set_id_limit() { id_limit_ = vocab_size_ > 0 ? vocab_size_ : std::numeric_limits<std::int32_t>::max(); }

void TokenFile::open_tokens() {
  auto tokens = hdf5::open_dataset(file_.id(), "tokens", path_);
  const hdf5::Datatype type(H5Dget_type(tokens.id()));
  const int bytes = unsigned_bytes(type);
  hdf5::checked_shape(tokens, "/tokens", path_);  // what lies elsewhere is refused before it is asked for its type
  if (bytes != 2 && bytes != 4)
    fail(ExitCode::data_error, {"/tokens has the wrong type", "uint16 or uint32", words_of(type), path_,
                                "write the file with tools/nanotron_tokenize.py"});
  tokens_ = StoredArray(std::move(tokens), "/tokens", bytes, disk_);
  if (size() == 0) fail(ExitCode::data_error, {"/tokens is empty", "", "", path_, ""});
}

void TokenFile::read_attributes() {
  eos_token_id_ = hdf5::read_integer(file_.id(), "eos_token_id", path_);
  bos_token_id_ = hdf5::read_integer(file_.id(), "bos_token_id", path_);
  unigram_entropy_ = hdf5::read_real(file_.id(), "unigram_entropy", path_);
  chat_template_ = hdf5::read_any_string(file_.id(), "chat_template", path_);
  tokenizer_.name = hdf5::read_any_string(file_.id(), "tokenizer", path_).value_or("");
  tokenizer_.sha256 = hdf5::read_any_string(file_.id(), "tokenizer_sha256", path_).value_or("");
  if (tokenizer_.sha256.size() > longest_digest)
    fail(ExitCode::data_error,
         {"the attribute tokenizer_sha256 is not a hash", fmt::format("at most {} bytes", longest_digest),
          fmt::format("{}", tokenizer_.sha256.size()), path_, ""});
  stated_vocab_size_ = hdf5::read_integer(file_.id(), "vocab_size", path_);
  vocab_size_ = stated_vocab_size_.value_or(0);
  if (vocab_size_ < 0 || vocab_size_ > std::numeric_limits<std::int32_t>::max())
    fail(ExitCode::data_error,
         {"the attribute vocab_size is out of range", "1 to 2147483647", fmt::format("{}", vocab_size_), path_, ""});
}

void TokenFile::open_documents() {
  if (!hdf5::exists(file_.id(), "documents")) return;
  auto documents = hdf5::open_dataset(file_.id(), "documents", path_);
  const hdf5::Datatype type(H5Dget_type(documents.id()));
  if (unsigned_bytes(type) == 0)
    fail(ExitCode::data_error, {"/documents has the wrong type", "uint64", words_of(type), path_,
                                "write the file with tools/nanotron_tokenize.py"});
  documents_ = StoredArray(std::move(documents), "/documents", 8, disk_);
  if (documents_.size() > size() + 1)
    fail(ExitCode::data_error, {"/documents is damaged", fmt::format("at most {} documents, one a token", size()),
                                fmt::format("{}", documents_.size()), path_, "rewrite the file"});
}

void TokenFile::open_loss_mask() {
  if (!hdf5::exists(file_.id(), "loss_mask")) return;
  auto mask = hdf5::open_dataset(file_.id(), "loss_mask", path_);
  const hdf5::Datatype type(H5Dget_type(mask.id()));
  if (H5Tget_class(type.id()) != H5T_INTEGER || H5Tget_size(type.id()) != 1 || !hdf5::is_plain_number(type))
    fail(ExitCode::data_error,
         {"/loss_mask does not match /tokens", fmt::format("{} values of uint8, one for each token", size()),
          fmt::format("values of {}", words_of(type)), path_, "write it with the tokens, 1 where the loss counts"});
  loss_mask_ = LossMask(StoredArray(std::move(mask), "/loss_mask", 1, disk_), path_, size());
}

void TokenFile::open_hashes() {
  std::vector<StoredArray*> all{&tokens_};
  if (documents_.exists()) all.push_back(&documents_);
  if (loss_mask_.exists()) all.push_back(&loss_mask_.values());
  hashes_ = data::open_hashes(file_, all, metadata(), disk_);
}

// Without hashes the zeros of bytes that were never written look like tokens.
void TokenFile::require_written() const {
  if (!tokens_.is_plain()) return;
  const ReadOnlyFile::Hole hole = tokens_.find_hole(smallest_hole);
  if (hole.bytes == 0) return;
  const index_t first = hole.begin / tokens_.width();
  fail(ExitCode::data_error,
       {.what = "/tokens was not written completely",
        .expected = "tokens in the file",
        .found = fmt::format("a hole of {} bytes, from token {} on", hole.bytes, first),
        .where = path_,
        .change = "recreate the file, and let the program that writes it finish; if these zeros are intended, "
                  "tools/nanotron_verify.py --add records that"});
}

std::vector<const StoredArray*> TokenFile::arrays() const {
  std::vector<const StoredArray*> all{&tokens_};
  if (documents_.exists()) all.push_back(&documents_);
  if (loss_mask_.exists()) all.push_back(&loss_mask_.values());
  return all;
}

std::string TokenFile::metadata() const {
  std::string text;
  for (const StoredArray* const array : arrays())
    text += fmt::format("{} {} of {} bytes\n", array->name().substr(1), array->size(), array->width());
  const auto add = [&](const char* name, const auto& value) {
    if (value) text += fmt::format("{} {}\n", name, *value);
  };
  add("vocab_size", stated_vocab_size_);
  add("eos_token_id", eos_token_id_);
  add("bos_token_id", bos_token_id_);
  if (!tokenizer_.name.empty()) text += fmt::format("tokenizer {}\n", tokenizer_.name);
  if (!tokenizer_.sha256.empty()) text += fmt::format("tokenizer_sha256 {}\n", tokenizer_.sha256);
  if (unigram_entropy_)
    text += fmt::format("unigram_entropy {:016x}\n", std::bit_cast<std::uint64_t>(*unigram_entropy_));
  add("chat_template", chat_template_);
  if (has_vocabulary())
    text += fmt::format("vocabulary {} {:016x} {:016x}\n", vocabulary_offsets_.size(), hash_of(vocabulary_offsets_),
                        block_hash(vocabulary_bytes_));
  return text;
}

std::uint64_t TokenFile::metadata_hash() const {
  const std::string text = metadata_ ? "" : metadata();
  return metadata_ ? *metadata_ : block_hash(text);
}

TokenFile::Change TokenFile::change_since(const FileStatus& before) const {
  if (!stays_open()) {
    const std::optional<FileStatus> here = find_status(path_);
    if (!here || !here->is_same_file(before)) return Change::replaced;
    return here->is_unwritten_since(before) ? Change::none : Change::written;
  }
  if (!disk_->status().is_unwritten_since(before)) return Change::written;
  const std::optional<FileStatus> now = find_status(path_);
  return now && now->is_same_file(before) ? Change::none : Change::replaced;
}

void TokenFile::read_vocabulary() {
  if (!hdf5::exists(file_.id(), "vocabulary/offsets") || !hdf5::exists(file_.id(), "vocabulary/bytes")) return;
  const auto offsets = hdf5::open_dataset(file_.id(), "vocabulary/offsets", path_);
  const auto bytes = hdf5::open_dataset(file_.id(), "vocabulary/bytes", path_);
  const index_t n = checked_length(offsets, "/vocabulary/offsets", *disk_);
  const index_t total = checked_length(bytes, "/vocabulary/bytes", *disk_);
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
  hdf5::check(H5Dread(offsets.id(), H5T_NATIVE_UINT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, vocabulary_offsets_.data()),
              ExitCode::data_error, fmt::format("{}: reading /vocabulary/offsets", path_));
  hdf5::check(H5Dread(bytes.id(), H5T_NATIVE_UINT8, H5S_ALL, H5S_ALL, H5P_DEFAULT, vocabulary_bytes_.data()),
              ExitCode::data_error, fmt::format("{}: reading /vocabulary/bytes", path_));
  if (vocabulary_offsets_.front() != 0 || vocabulary_offsets_.back() != static_cast<std::uint64_t>(total) ||
      !std::is_sorted(vocabulary_offsets_.begin(), vocabulary_offsets_.end()))
    refuse("other offsets");
  tokenizer_.vocabulary = vocabulary_hash(vocabulary_offsets_, vocabulary_bytes_);
}

StoredArray TokenFile::open_column(const std::string& name) const {
  if (!stays_open()) {
    fail(ExitCode::data_error, {.what = fmt::format("/{} cannot be read of a file of a long list", name),
                                .expected = "at most 16 files",
                                .found = "more",
                                .where = path_,
                                .change = "join some of the files"});
  }
  if (!hdf5::exists(file_.id(), name)) return {};
  auto dataset = hdf5::open_dataset(file_.id(), name, path_);
  hdf5::checked_shape(dataset, "/" + name, path_);
  const hdf5::Datatype type(H5Dget_type(dataset.id()));
  if (unsigned_bytes(type) == 0)
    fail(ExitCode::data_error,
         {fmt::format("/{} has the wrong type", name), "unsigned integers", words_of(type), path_, "rewrite the file"});
  StoredArray column(std::move(dataset), "/" + name, 8, disk_);
  if (hashes_.exist() && hdf5::exists(file_.id(), "hashes/" + name))
    column.compare_with(hashes_of(file_, column, disk_), hashes_.block);
  return column;
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
  tokens_.for_each_piece(first, count, [&](const StoredArray::Values& piece, index_t at) {
    widen(tokens_.width(), piece.data, piece.count, out + at);
  });
}

void TokenFile::require_inside(index_t first, index_t count) const {
  if (first < 0 || count < 0 || first > size() - count)
    fail(ExitCode::data_error, {"tokens outside of the file were requested", fmt::format("0 to {}", size() - 1),
                                fmt::format("{} to {}", first, first + count - 1), path_, ""});
}

void TokenFile::read_unchecked(index_t first, index_t count, std::int32_t* out) const {
  require_inside(first, count);
  read_raw(first, count, out);
}

void TokenFile::read(index_t first, index_t count, std::int32_t* out) const {
  read_unchecked(first, count, out);
  require_ids(first, count, out);
}

void TokenFile::read_with_next(index_t first, index_t count, std::int32_t* out, std::int32_t* next) const {
  require_inside(first, count + 1);
  tokens_.for_each_piece(first, count + 1, [&](const StoredArray::Values& piece, index_t at) {
    const index_t values = std::min(piece.count, count - at);
    widen(tokens_.width(), piece.data, values, out + at);
    if (values < piece.count) widen(tokens_.width(), piece.data + values * tokens_.width(), 1, next + count - 1);
  });
  std::copy_n(out + 1, count - 1, next);
  require_ids(first, count, out);
  require_ids(first + count, 1, next + count - 1);
}

void TokenFile::require_ids(index_t first, index_t count, const std::int32_t* ids) const {
  const auto limit = static_cast<std::uint32_t>(id_limit_);
  std::uint32_t largest = 0;
  for (index_t i = 0; i < count; ++i) largest = std::max(largest, std::bit_cast<std::uint32_t>(ids[i]));
  if (largest < limit) return;
  for (index_t i = 0; i < count; ++i)
    if (std::bit_cast<std::uint32_t>(ids[i]) >= limit)
      fail(ExitCode::data_error,
           {"a token id is outside of the vocabulary", fmt::format("0 to {}", limit - 1),
            fmt::format("{} at position {} of /tokens", std::bit_cast<std::uint32_t>(ids[i]), first + i), path_,
            "check vocab_size and the tokenizer the file was made with"});
}

}  // namespace nanotron::data
