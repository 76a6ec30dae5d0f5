#pragma once

// Where the documents of a token file begin: /documents.

#include <cstdint>
#include <span>
#include <vector>

#include "nanotron/data/token_file.hpp"
#include "nanotron/tensor/shard.hpp"

namespace nanotron::data {

/// All start offsets in memory, 8 bytes a document. Tokens before the first offset are a document too.
class Documents {
 public:
  /// Throws Error(data_error) when the file has no /documents, or offsets that do not rise or leave /tokens.
  explicit Documents(const TokenFile& file);

  /// out[i]: begin of the document of token first + i, counted from first; 0 where that lies before. Allocates
  /// nothing.
  void starts(index_t first, std::span<std::int32_t> out) const;

  /// The tokens of each document that has any, of a file of so many tokens.
  std::vector<Range> ranges(index_t tokens) const;

 private:
  std::vector<std::uint64_t> offsets_;
};

}  // namespace nanotron::data
