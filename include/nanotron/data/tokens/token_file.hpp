#pragma once

// A token file: HDF5 with the 1-D dataset /tokens (uint16 or uint32). Optional: /documents (uint64 start
// offsets, see documents.hpp), /loss_mask (see loss_mask.hpp), /hashes (see token_hashes.hpp); attributes vocab_size,
// eos_token_id, bos_token_id, tokenizer (its name), tokenizer_sha256, unigram_entropy (nats per token), chat_template;
// and the vocabulary as bytes, where token i is /vocabulary/bytes[offsets[i] .. offsets[i+1]-1] with offsets =
// /vocabulary/offsets.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nanotron/base/types.hpp"
#include "nanotron/data/files/hdf5.hpp"
#include "nanotron/data/files/stored_array.hpp"
#include "nanotron/data/tokens/loss_mask.hpp"
#include "nanotron/data/tokens/token_hashes.hpp"
#include "nanotron/data/tokens/token_head.hpp"
#include "nanotron/data/tokens/tokenizer_id.hpp"

namespace nanotron::data {

/// Each rank opens the file read-only; nothing here is collective. Shapes, types and sizes are checked on opening, and
/// all data read if the file has hashes. Errors are Error(data_error) and name the file, or Error(system_error) if the
/// system cannot read it.
class TokenFile {
 public:
  enum class Hashes { compared, ignored };  // ignored: zeros that were never written are taken for tokens, too
  explicit TokenFile(const std::filesystem::path& path, Hashes hashes = Hashes::compared);
  /// One of a long list, whose head a rank has read from a whole TokenFile: opened when it is read, and closed when
  /// others are. It has no vocabulary to decode with, and open_column() fails.
  TokenFile(const TokenHead& head, std::shared_ptr<OpenFiles> open_files);
  TokenFile(TokenFile&& other) noexcept = default;
  TokenFile& operator=(TokenFile&&) = delete;

  const std::string& path() const { return path_; }
  index_t size() const { return tokens_.size(); }
  /// From the attribute, else from the vocabulary; 0 when the file has neither.
  index_t vocab_size() const { return vocab_size_; }
  index_t number_of_documents() const { return documents_.size(); }
  std::optional<std::int64_t> eos_token_id() const { return eos_token_id_; }
  std::optional<std::int64_t> bos_token_id() const { return bos_token_id_; }  // none: documents begin without
  std::optional<double> unigram_entropy() const { return unigram_entropy_; }
  const TokenizerId& tokenizer() const { return tokenizer_; }
  const TokenHashes& hashes() const { return hashes_; }

  /// The file when it was opened, and now; and whether it has been written to, or the path replaced, since `before`.
  enum class Change { none, replaced, written };  // replaced: the path leads to another file; this one is as it was
  const FileStatus& status() const { return opened_; }
  FileStatus status_now() const { return disk_->status(); }
  Change change_since(const FileStatus& before) const;
  bool stays_open() const { return disk_->stays_open(); }

  /// read() then checks ids against the model's vocabulary size. Throws when the file's own is larger.
  void require_vocab_size(index_t model_vocab_size);

  /// out[0 .. count-1] <- tokens[first .. first+count-1]. Throws when the range exceeds the file, or an id is
  /// not below the vocabulary size (with its position). If /tokens is contiguous it is read with pread, from any
  /// thread, and without allocation on the thread that opened the file.
  void read(index_t first, index_t count, std::int32_t* out) const;
  /// The same, and next[i] <- tokens[first + i + 1]; count >= 1.
  void read_with_next(index_t first, index_t count, std::int32_t* out, std::int32_t* next) const;

  /// Which tokens count in the loss as targets.
  const LossMask& loss_mask() const { return loss_mask_; }

  /// As read(), without the check of ids.
  void read_unchecked(index_t first, index_t count, std::int32_t* out) const;

  /// /documents; empty when the file has none.
  std::vector<std::uint64_t> read_documents() const { return documents_.read_all(); }
  /// Another dataset of unsigned integers, read as uint64 and compared with its hashes where the file has them; one
  /// that does not exist() when the file has none.
  StoredArray open_column(const std::string& name) const;

  /// /tokens, /documents and /loss_mask, as far as the file has them.
  std::vector<const StoredArray*> arrays() const;
  /// All sizes and attributes as lines of text, which /hashes has a hash of.
  std::string metadata() const;
  /// Of that text.
  std::uint64_t metadata_hash() const;
  TokenHead head() const;

  bool has_vocabulary() const { return !vocabulary_offsets_.empty(); }
  /// The concatenated bytes of these tokens. Ids outside the vocabulary become "<id>".
  std::string decode(std::span<const std::int32_t> ids) const;
  /// Greedy: from left to right, the longest token that matches. Exact where each token is one byte, otherwise
  /// an approximation of the tokenizer. Throws when there is no vocabulary, or no token matches.
  std::vector<std::int32_t> encode(std::string_view text) const;
  /// Whether more than one sequence of ids decodes to this text, so that a tokenizer may choose another than encode().
  bool is_ambiguous(std::string_view text) const;

 private:
  void set_id_limit();
  void open_tokens();
  void open_documents();
  void open_loss_mask();
  void open_hashes();
  void require_written() const;
  void read_attributes();
  void read_vocabulary();
  void read_raw(index_t first, index_t count, std::int32_t* out) const;
  void require_inside(index_t first, index_t count) const;
  void require_ids(index_t first, index_t count, const std::int32_t* ids) const;
  std::string_view word(std::size_t id) const;

  std::string path_;
  std::shared_ptr<const ReadOnlyFile> disk_;
  FileStatus opened_;
  hdf5::File file_;
  StoredArray tokens_, documents_;
  LossMask loss_mask_;
  TokenHashes hashes_;
  std::optional<std::uint64_t> metadata_;  // of a head
  index_t vocab_size_ = 0, id_limit_ = 0;
  std::optional<std::int64_t> stated_vocab_size_, eos_token_id_, bos_token_id_;
  std::optional<double> unigram_entropy_;
  std::optional<std::string> chat_template_;
  TokenizerId tokenizer_;
  std::vector<std::uint64_t> vocabulary_offsets_;
  std::string vocabulary_bytes_;
};

}  // namespace nanotron::data
