#pragma once
// Keys that may be arrays of strings: their value is one text with a line for each element. Private to the deck layer.

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "nanotron/deck/checks/findings.hpp"
#include "nanotron/deck/namelist/namelist.hpp"

namespace nanotron::deck {

inline constexpr std::int64_t max_lines = 4096;

/// The lines that are not empty.
inline std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    if (end != 0) lines.push_back(text.substr(0, end));
    text.remove_prefix(end == text.npos ? text.size() : end + 1);
  }
  return lines;
}

/// Adds a line.
inline void add_line(std::string& text, std::string_view line) {
  if (!text.empty()) text += '\n';
  text += line;
}

/// The words between blanks and ends of lines.
inline std::vector<std::string_view> words_of(std::string_view text) {
  constexpr std::string_view blanks = " \t\n";
  std::vector<std::string_view> words;
  for (std::size_t at = 0; (at = text.find_first_not_of(blanks, at)) != text.npos;) {
    const std::size_t end = std::min(text.find_first_of(blanks, at), text.size());
    words.push_back(text.substr(at, end - at));
    at = end;
  }
  return words;
}

namespace detail {

/// The elements, without empty ones. Those that are not given keep what was there, unless a whole list replaces it.
inline std::string lines_from(const Assigned& assigned, const std::string& before) {
  std::vector<std::string> elements;
  for (const std::string_view line : lines_of(before)) elements.emplace_back(line);
  std::size_t given = assigned.elements.size();
  while (given > 0 && !assigned.elements[given - 1]) --given;
  if (assigned.is_whole || elements.size() < given) elements.resize(given);
  for (std::size_t i = 0; i < given; ++i) {
    if (assigned.elements[i]) elements[i] = std::get<std::string>(assigned.elements[i]->scalar);
  }
  std::string text;
  for (const std::string& element : elements) {
    if (!element.empty()) add_line(text, element);
  }
  return text;
}

/// Where the lines come from: origin.spots["group.name(1)"]; those of a list that was replaced do not count.
inline void note_lines(const Assigned& assigned, const std::string& name, std::size_t source, Origin& origin) {
  const auto line = [&](std::size_t number) { return name + "(" + std::to_string(number) + ")"; };
  for (std::size_t i = 1; assigned.is_whole && origin.spots.erase(line(i)) > 0; ++i) continue;
  std::size_t number = 0;
  for (std::size_t i = 0; i < assigned.elements.size(); ++i) {
    if (!assigned.is_whole) number = i;
    const auto& value = assigned.elements[i];
    if (!value || std::get<std::string>(value->scalar).empty()) continue;
    origin.spots[line(++number)] = {source, value->offset, value->length};
  }
}

}  // namespace detail
}  // namespace nanotron::deck
