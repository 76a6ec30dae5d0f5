#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "nanotron/base/error.hpp"
#include "nanotron/data/tokens/token_file.hpp"

namespace nanotron::data {

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
  for (std::size_t at = 0, length = 0; at < text.size(); at += length) {
    auto found = ids.end();
    length = std::min(longest, text.size() - at);
    while (length > 0 && (found = ids.find(text.substr(at, length))) == ids.end()) --length;
    if (length == 0)
      fail(ExitCode::data_error,
           {"the vocabulary of the token file cannot encode the text", "a token for each byte",
            has_vocabulary() ? fmt::format("no token matches at byte {} of the text", at) : "no vocabulary in the file",
            path_, "give the prompt as token ids"});
    result.push_back(found->second);
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
