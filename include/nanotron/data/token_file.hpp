#pragma once

// A token file: HDF5 with the 1-D dataset /tokens (uint16 or uint32). Optional: /documents (uint64 start
// offsets, see documents.hpp), /loss_mask (see loss_mask.hpp); attributes vocab_size, eos_token_id, tokenizer (its
// name), tokenizer_sha256, unigram_entropy (nats per token); and the vocabulary as bytes, where token i is
// /vocabulary/bytes[offsets[i] .. offsets[i+1]-1] with offsets = /vocabulary/offsets.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nanotron/base/types.hpp"
#include "nanotron/data/hdf5.hpp"
#include "nanotron/data/loss_mask.hpp"
#include "nanotron/data/tokenizer_id.hpp"

namespace nanotron::data {

/// Each rank opens the file read-only; nothing here is collective. Shapes and types are checked on opening;
/// all errors are Error(data_error) and name the file.
class TokenFile {
 public:
  explicit TokenFile(const std::filesystem::path& path);
  ~TokenFile();
  TokenFile(TokenFile&& other) noexcept;
  TokenFile& operator=(TokenFile&&) = delete;

  const std::string& path() const { return path_; }
  index_t size() const { return size_; }
  /// From the attribute, else from the vocabulary; 0 when the file has neither.
  index_t vocab_size() const { return vocab_size_; }
  index_t number_of_documents() const { return number_of_documents_; }
  std::optional<std::int64_t> eos_token_id() const { return eos_token_id_; }
  std::optional<double> unigram_entropy() const { return unigram_entropy_; }
  const TokenizerId& tokenizer() const { return tokenizer_; }

  /// read() then checks ids against the model's vocabulary size. Throws when the file's own is larger.
  void require_vocab_size(index_t model_vocab_size);

  /// out[0 .. count-1] <- tokens[first .. first+count-1]. Throws when the range exceeds the file, or an id is
  /// not below the vocabulary size (with its position). If /tokens is contiguous it is read with pread:
  /// without allocation, and from any thread.
  void read(index_t first, index_t count, std::int32_t* out) const;

  /// Which tokens count in the loss as targets.
  const LossMask& loss_mask() const { return loss_mask_; }

  /// As read(), without the check of ids.
  void read_unchecked(index_t first, index_t count, std::int32_t* out) const;

  /// /documents; empty when the file has none.
  std::vector<std::uint64_t> read_documents() const;

  bool has_vocabulary() const { return !vocabulary_offsets_.empty(); }
  /// The concatenated bytes of these tokens. Ids outside the vocabulary become "<id>".
  std::string decode(std::span<const std::int32_t> ids) const;
  /// Greedy: from left to right, the longest token that matches. Exact where each token is one byte, otherwise
  /// an approximation of the tokenizer. Throws when there is no vocabulary, or no token matches.
  std::vector<std::int32_t> encode(std::string_view text) const;
  /// Whether more than one sequence of ids decodes to this text, so that a tokenizer may choose another than encode().
  bool is_ambiguous(std::string_view text) const;

 private:
  void open_tokens();
  void open_documents();
  void open_plain(const std::filesystem::path& path);
  void read_vocabulary();
  void read_raw(index_t first, index_t count, std::int32_t* out) const;
  void require_inside(index_t first, index_t count) const;
  std::string_view word(std::size_t id) const;

  std::string path_;
  hdf5::File file_;
  hdf5::Dataset tokens_;
  LossMask loss_mask_;
  int descriptor_ = -1;      // of the file, when /tokens can be read with pread; else -1
  std::int64_t offset_ = 0;  // of /tokens in the file, in bytes
  int token_bytes_ = 0;      // 2 or 4
  index_t size_ = 0, vocab_size_ = 0, id_limit_ = 0, number_of_documents_ = 0;
  std::optional<std::int64_t> eos_token_id_;
  std::optional<double> unigram_entropy_;
  TokenizerId tokenizer_;
  std::vector<std::uint64_t> vocabulary_offsets_;
  std::string vocabulary_bytes_;
};

}  // namespace nanotron::data
