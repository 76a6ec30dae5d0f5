#pragma once

// Identifies tokenizers, to tell whether the token ids of two files mean the same.

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "nanotron/base/types.hpp"

namespace nanotron::data {

inline constexpr std::size_t longest_digest = 256;  // bytes of sha256 that files may have

struct TokenizerId {
  std::string name;        // for messages
  std::string sha256;      // of the tokenizer.json; empty: not known
  std::string vocabulary;  // vocabulary_hash(); empty: no vocabulary

  bool known() const { return !sha256.empty() || !vocabulary.empty(); }
};

enum class SameTokenizer { yes, no, unknown };

/// Compares sha256 if both have one, else vocabulary if both have one; else unknown.
SameTokenizer same_tokenizer(const TokenizerId& a, const TokenizerId& b);

/// XXH3-128 of a vocabulary as 32 hexadecimal digits: of its offsets (uint64, little endian), then its bytes.
std::string vocabulary_hash(const std::vector<std::uint64_t>& offsets, std::string_view bytes);

/// "'llama' (tokenizer_sha256 12ab...)", with the hash that same_tokenizer(id, against) compares.
std::string describe(const TokenizerId& id, const TokenizerId& against);

}  // namespace nanotron::data
