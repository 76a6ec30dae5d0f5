#pragma once

// By what tokens of two files can be told to mean the same.

#include <string>
#include <string_view>
#include <vector>

#include "nanotron/base/types.hpp"

namespace nanotron::data {

struct TokenizerId {
  std::string name;        // for people
  std::string sha256;      // of the tokenizer's description (tokenizer.json); empty: not known
  std::string vocabulary;  // vocabulary_hash(); empty: no vocabulary

  bool known() const { return !sha256.empty() || !vocabulary.empty(); }
};

enum class SameTokenizer { yes, no, unknown };

/// By sha256 where both have one, else by the vocabularies where both have one.
SameTokenizer same_tokenizer(const TokenizerId& a, const TokenizerId& b);

/// XXH3-128 of a vocabulary, 32 hexadecimal digits: of its offsets (uint64, little endian) and behind them its bytes.
std::string vocabulary_hash(const std::vector<std::uint64_t>& offsets, std::string_view bytes);

/// "'llama' (tokenizer_sha256 12ab...)": the hash that is compared with the other's.
std::string describe(const TokenizerId& id, const TokenizerId& against);

}  // namespace nanotron::data
