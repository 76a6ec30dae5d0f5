#pragma once

// Document boundaries of a token file: /documents.

#include <cstdint>
#include <span>
#include <vector>

#include "nanotron/data/tokens/token_file.hpp"
#include "nanotron/tensor/shard.hpp"

namespace nanotron::data {

/// All start offsets, in memory: 8 bytes per document. Tokens before the first offset are a document too.
class Documents {
 public:
  /// Error(data_error) when the file has no /documents, or offsets that decrease or exceed the size of /tokens.
  explicit Documents(const TokenFile& file);

  /// out[i] <- max(0, begin of the document of token first + i, minus first). Allocates nothing.
  void starts(index_t first, std::span<std::int32_t> out) const;

  /// The token ranges of all non-empty documents; tokens: size of the file.
  std::vector<Range> ranges(index_t tokens) const;

 private:
  std::vector<std::uint64_t> offsets_;
};

}  // namespace nanotron::data
