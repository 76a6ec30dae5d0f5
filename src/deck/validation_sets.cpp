#include "nanotron/deck/validation_sets.hpp"

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

// What is wrong with a set, of those before it.
std::string mistake_in(const ValidationSet& set, const std::vector<ValidationSet>& before) {
  if (set.path.empty()) return "the set '" + set.name + "' has no path";
  if (set.name.size() > longest_name) return "the name '" + set.name + "' is longer than 32 characters";
  const bool twice = std::ranges::any_of(before, [&](const ValidationSet& b) { return b.name == set.name; });
  return twice ? "there are two sets '" + set.name + "'" : "";
}

}  // namespace

std::vector<ValidationSet> validation_sets(std::string_view text, std::string* mistake) {
  std::vector<ValidationSet> sets;
  std::string wrong;
  std::string_view nameless;
  const std::vector<std::string_view> words = words_of(text);
  for (const std::string_view word : words) {
    const std::size_t equals = word.find('=');
    if (equals == word.npos || !is_name(word.substr(0, equals))) {
      if (nameless.empty()) nameless = word;
      continue;
    }
    ValidationSet set{std::string(word.substr(0, equals)), std::string(word.substr(equals + 1))};
    if (wrong.empty()) wrong = mistake_in(set, sets);
    sets.push_back(std::move(set));
  }
  if (!words.empty() && sets.empty()) return {{"", std::string(text)}};
  if (wrong.empty() && !nameless.empty()) wrong = "'" + std::string(nameless) + "' is not name=path";
  if (mistake != nullptr) *mistake = wrong;
  return sets;
}

std::vector<std::string> validation_set_names(std::string_view text) {
  std::vector<std::string> names;
  for (const ValidationSet& set : validation_sets(text)) {
    if (!set.name.empty()) names.push_back(set.name);
  }
  return names;
}

std::string key_of(const ValidationSet& set) {
  return set.name.empty() ? "data%validation_path" : "data%validation_path, set '" + set.name + "'";
}

}  // namespace nanotron::deck
