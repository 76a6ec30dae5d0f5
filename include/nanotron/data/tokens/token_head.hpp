#pragma once

// What a rank needs to know of a token file before it reads tokens: plain values, which one rank reads and others get.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "nanotron/base/types.hpp"
#include "nanotron/data/files/read_only_file.hpp"
#include "nanotron/data/files/stored_array.hpp"
#include "nanotron/data/tokens/token_hashes.hpp"
#include "nanotron/data/tokens/tokenizer_id.hpp"

namespace nanotron::data {

struct TokenHead {
  std::string path;
  FileStatus status;
  StoredArray::Place tokens, documents, loss_mask;
  StoredArray::Place token_hashes, document_hashes, loss_mask_hashes;
  TokenHashes hashes;
  std::uint64_t metadata = 0;  // TokenFile::metadata_hash()
  index_t vocab_size = 0;
  std::optional<std::int64_t> eos_token_id, bos_token_id;
  std::optional<double> unigram_entropy;
  TokenizerId tokenizer;
};

/// As bytes, and back. Error(system_error) for bytes that are not whole.
std::string packed(const TokenHead& head);
TokenHead unpacked(std::string_view bytes);

}  // namespace nanotron::data
