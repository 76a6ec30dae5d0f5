#include "nanotron/deck/named_files.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <map>
#include <set>

#include "deck/table/lines.hpp"
#include "nanotron/deck/checks/findings.hpp"
#include "nanotron/deck/config.hpp"

namespace nanotron::deck {
namespace {

constexpr std::size_t longest_name = 32;

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_name(std::string_view word) {
  return !word.empty() && is_letter(word.front()) &&
         std::ranges::all_of(word, [](char c) { return is_letter(c) || (c >= '0' && c <= '9') || c == '_'; });
}

// What is wrong with a word, after those before it.
std::string mistake_in(const NamedWord& word, std::set<std::string>& before, std::string_view what) {
  const auto& [name, value] = word;
  if (value.empty()) return "'" + name + "' has no " + std::string(what);
  if (name.size() > longest_name) return "the name '" + name + "' is longer than 32 characters";
  return before.insert(name).second ? "" : "'" + name + "' is given twice";
}

// A path, or name=path.
NamedFile file_of(std::string_view text, double weight, std::size_t line) {
  const std::size_t equals = text.find('=');
  if (equals == text.npos || !is_name(text.substr(0, equals)))
    return {.name = "", .path = std::string(text), .weight = weight, .line = line};
  return {.name = std::string(text.substr(0, equals)),
          .path = std::string(text.substr(equals + 1)),
          .is_named = true,
          .weight = weight,
          .line = line};
}

// "0.3 a.h5 0.7 b.h5": a path goes to the next word that is a number.
void read_weighted(std::string_view text, std::size_t line, std::vector<NamedFile>& files, std::string& wrong) {
  const std::vector<std::string_view> words = words_of(text);
  for (std::size_t i = 0; i < words.size();) {
    const std::string_view weight = words[i++];
    const std::size_t first = i;
    while (i < words.size() && !finite_number(words[i])) ++i;
    if (i == first) {
      if (wrong.empty()) wrong = "the weight '" + std::string(weight) + "' has no path";
      continue;
    }
    const std::string_view path(words[first].data(),
                                static_cast<std::size_t>(words[i - 1].end() - words[first].begin()));
    files.push_back(file_of(path, *finite_number(weight), line));
    if (files.back().weight < 0.0 && wrong.empty())
      wrong = "the weight '" + std::string(weight) + "' of " + std::string(path) + " is not a number of 0 or more";
  }
}

void read_line(std::string_view text, std::size_t line, std::vector<NamedFile>& files, std::string& wrong) {
  const std::vector<std::string_view> words = words_of(text);
  if (words.size() > 1 && finite_number(words.front())) return read_weighted(text, line, files, wrong);
  std::vector<NamedFile> found;
  for (const std::string_view word : words) found.push_back(file_of(word, -1.0, line));
  if (std::ranges::none_of(found, &NamedFile::is_named)) {
    if (!words.empty()) files.push_back({.name = "", .path = std::string(text), .line = line});
    return;
  }
  files.insert(files.end(), found.begin(), found.end());
}

// The files that have names; says what is wrong with them, and with those beside them that have none.
void check_names(std::vector<NamedFile>& files, std::string& wrong) {
  std::string nameless;
  std::set<std::string> before;
  for (const NamedFile& file : files) {
    if (!file.is_named && nameless.empty()) nameless = "'" + file.path + "' is not name=path";
    if (file.is_named && wrong.empty()) wrong = mistake_in({file.name, file.path}, before, "path");
  }
  if (wrong.empty()) wrong = nameless;
  std::erase_if(files, [](const NamedFile& file) { return !file.is_named; });
}

// Gives each file the end of its path that tells it from the others.
void name_by_paths(std::vector<NamedFile>& files, std::string& wrong) {
  std::vector<std::vector<std::string>> parts;
  for (const NamedFile& file : files) {
    parts.emplace_back();
    for (const auto& part : std::filesystem::path(file.path).lexically_normal()) parts.back().push_back(part.string());
  }
  std::vector<std::size_t> taken(files.size(), 1);
  for (bool grows = true; grows;) {
    std::map<std::string, std::vector<std::size_t>> of_name;
    for (std::size_t i = 0; i < files.size(); ++i) {
      std::filesystem::path name;
      for (std::size_t k = parts[i].size() - taken[i]; k < parts[i].size(); ++k) name /= parts[i][k];
      files[i].name = name.string();
      of_name[files[i].name].push_back(i);
    }
    grows = false;
    for (const auto& [name, same] : of_name) {
      for (const std::size_t i : same) {
        if (same.size() == 1 || taken[i] == parts[i].size()) continue;
        ++taken[i];
        grows = true;
      }
    }
  }
  std::set<std::string> before;
  for (const NamedFile& file : files) {
    if (!before.insert(file.name).second && wrong.empty()) wrong = "'" + file.path + "' is given twice";
  }
}

void check_weights(const std::vector<NamedFile>& files, std::string& wrong) {
  const auto with = std::ranges::find_if(files, [](const NamedFile& file) { return file.weight > 0.0; });
  const auto without = std::ranges::find_if(files, [](const NamedFile& file) { return file.weight < 0.0; });
  if (with != files.end() && without != files.end() && wrong.empty())
    wrong = "'" + without->path + "' has no weight, and '" + with->path + "' has one";
}

}  // namespace

std::optional<double> finite_number(std::string_view text) {
  double value = 0.0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) return std::nullopt;
  return value;
}

std::vector<NamedWord> named_words(std::string_view text, std::string_view what, std::string* mistake) {
  std::vector<NamedWord> found;
  std::set<std::string> before;
  std::string wrong, nameless;
  for (const std::string_view word : words_of(text)) {
    const std::size_t equals = word.find('=');
    if (equals == word.npos || !is_name(word.substr(0, equals))) {
      if (nameless.empty()) nameless = "'" + std::string(word) + "' is not name=" + std::string(what);
      continue;
    }
    NamedWord next{word.substr(0, equals), word.substr(equals + 1)};
    if (wrong.empty()) wrong = mistake_in(next, before, what);
    found.push_back(std::move(next));
  }
  if (mistake != nullptr) *mistake = wrong.empty() ? nameless : wrong;
  return found;
}

std::vector<NamedFile> named_files(std::string_view text, std::string* mistake) {
  std::string wrong;
  std::vector<NamedFile> files;
  std::size_t line = 0;
  for (const std::string_view one : lines_of(text)) read_line(one, line++, files, wrong);
  if (std::ranges::any_of(files, &NamedFile::is_named)) {
    check_names(files, wrong);
  } else if (files.size() > 1) {
    name_by_paths(files, wrong);
  }
  check_weights(files, wrong);
  if (mistake != nullptr) *mistake = wrong;
  return files;
}

bool are_weighted_by_tokens(const DataConfig& data) {
  if (!words_of(data.weights).empty()) return false;
  const std::vector<NamedFile> files = named_files(data.path);
  return files.size() > 1 && !files.front().is_named &&
         std::ranges::none_of(files, [](const NamedFile& file) { return file.weight > 0.0; });
}

std::string weights_by_tokens(const DataConfig& data, const std::vector<std::int64_t>& tokens) {
  const std::vector<NamedFile> files = named_files(data.path);
  std::string text;
  for (std::size_t i = 0; i < files.size(); ++i)
    add_line(text, files[i].weight == 0.0 ? "0" : std::to_string(tokens.at(i)));
  return text;
}

std::vector<std::string> validation_set_names(const DataConfig& data) {
  std::vector<std::string> names;
  const std::string& files = data.validation_path.empty() ? data.path : data.validation_path;
  if (data.validation_path.empty() && data.validation_fraction == 0.0) return names;
  for (const NamedFile& file : named_files(files)) {
    if (file.is_named) names.push_back(file.name);
  }
  return names;
}

std::string files_text(const std::string& text) {
  if (lines_of(text).size() < 2) return text;
  const std::vector<NamedFile> files = named_files(text);
  return files.empty() ? text : files.front().path + " and " + std::to_string(files.size() - 1) + " more files";
}

std::string key_of(std::string_view key, const NamedFile& file) {
  return std::string(key) + (file.name.empty() ? "" : ", '" + file.name + "'");
}

std::string place_of(const Config& config, std::string_view key, std::size_t line) {
  if (!config.origin || config.origin->spots.count(std::string(key) + "(2)") == 0) return "";
  const auto found = config.origin->spots.find(std::string(key) + "(" + std::to_string(line + 1) + ")");
  if (found == config.origin->spots.end()) return "";
  return config.origin->sources[found->second.source].where(found->second.offset);
}

}  // namespace nanotron::deck
