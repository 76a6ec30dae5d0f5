#include "nanotron/data/tokens/tokenizer_id.hpp"

#include <fmt/format.h>

#include <xxhash.h>

namespace nanotron::data {

SameTokenizer same_tokenizer(const TokenizerId& a, const TokenizerId& b) {
  const auto compare = [](const std::string& x, const std::string& y) {
    return x == y ? SameTokenizer::yes : SameTokenizer::no;
  };
  if (!a.sha256.empty() && !b.sha256.empty()) return compare(a.sha256, b.sha256);
  if (!a.vocabulary.empty() && !b.vocabulary.empty()) return compare(a.vocabulary, b.vocabulary);
  return SameTokenizer::unknown;
}

std::string vocabulary_hash(const std::vector<std::uint64_t>& offsets, std::string_view bytes) {
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(), &XXH3_freeState);
  XXH3_128bits_reset(state.get());
  XXH3_128bits_update(state.get(), offsets.data(), offsets.size() * sizeof(std::uint64_t));
  XXH3_128bits_update(state.get(), bytes.data(), bytes.size());
  const XXH128_hash_t hash = XXH3_128bits_digest(state.get());
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

std::string describe(const TokenizerId& id, const TokenizerId& against) {
  const std::string name = id.name.empty() ? "a tokenizer without a name" : "'" + id.name + "'";
  if (!id.sha256.empty() && !against.sha256.empty()) return fmt::format("{} (tokenizer_sha256 {})", name, id.sha256);
  if (!id.vocabulary.empty() && !against.vocabulary.empty())
    return fmt::format("{} (vocabulary hash {})", name, id.vocabulary);
  return fmt::format("{} (no hash to compare)", name);
}

}  // namespace nanotron::data
