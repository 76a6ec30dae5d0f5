#include "nanotron/deck/named_files.hpp"

#include <algorithm>

namespace nanotron::deck {
namespace {

constexpr std::size_t longest_name = 32;

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_name(std::string_view word) {
  return !word.empty() && is_letter(word.front()) &&
         std::ranges::all_of(word, [](char c) { return is_letter(c) || (c >= '0' && c <= '9') || c == '_'; });
}

std::vector<std::string_view> words_of(std::string_view text) {
  std::vector<std::string_view> words;
  for (std::size_t at = 0; (at = text.find_first_not_of(" \t", at)) != text.npos;) {
    const std::size_t end = std::min(text.find_first_of(" \t", at), text.size());
    words.push_back(text.substr(at, end - at));
    at = end;
  }
  return words;
}

// What is wrong with a word, after those before it.
std::string mistake_in(const NamedWord& word, const std::vector<NamedWord>& before, std::string_view what) {
  const auto& [name, value] = word;
  if (value.empty()) return "'" + name + "' has no " + std::string(what);
  if (name.size() > longest_name) return "the name '" + name + "' is longer than 32 characters";
  const bool twice = std::ranges::any_of(before, [&](const NamedWord& b) { return b.first == word.first; });
  return twice ? "'" + name + "' is given twice" : "";
}

}  // namespace

std::vector<NamedWord> named_words(std::string_view text, std::string_view what, std::string* mistake) {
  std::vector<NamedWord> found;
  std::string wrong, nameless;
  for (const std::string_view word : words_of(text)) {
    const std::size_t equals = word.find('=');
    if (equals == word.npos || !is_name(word.substr(0, equals))) {
      if (nameless.empty()) nameless = "'" + std::string(word) + "' is not name=" + std::string(what);
      continue;
    }
    NamedWord next{word.substr(0, equals), word.substr(equals + 1)};
    if (wrong.empty()) wrong = mistake_in(next, found, what);
    found.push_back(std::move(next));
  }
  if (mistake != nullptr) *mistake = wrong.empty() ? nameless : wrong;
  return found;
}

std::vector<NamedFile> named_files(std::string_view text, std::string* mistake) {
  std::string wrong;
  std::vector<NamedFile> files;
  for (auto& [name, path] : named_words(text, "path", &wrong)) files.push_back({std::move(name), std::move(path)});
  if (!words_of(text).empty() && files.empty()) return {{"", std::string(text)}};
  if (mistake != nullptr) *mistake = wrong;
  return files;
}

std::vector<std::string> validation_set_names(const DataConfig& data) {
  std::vector<std::string> names;
  const std::string& files = data.validation_path.empty() ? data.path : data.validation_path;
  if (data.validation_path.empty() && data.validation_fraction == 0.0) return names;
  for (const NamedFile& file : named_files(files)) {
    if (!file.name.empty()) names.push_back(file.name);
  }
  return names;
}

std::string key_of(std::string_view key, const NamedFile& file) {
  return std::string(key) + (file.name.empty() ? "" : ", '" + file.name + "'");
}

}  // namespace nanotron::deck
