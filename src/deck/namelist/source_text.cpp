#include "nanotron/deck/namelist/source_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>

#include "nanotron/base/error.hpp"
#include "nanotron/base/files.hpp"

namespace nanotron::deck {
namespace {

struct Lookalike {
  std::string_view bytes, code, name, plain;
};

// Lookalike characters that editors and web pages substitute for those of a deck.
constexpr Lookalike lookalikes[] = {
    {"\u2018", "U+2018", "a curly quote", "'"},
    {"\u2019", "U+2019", "a curly quote", "'"},
    {"\u201A", "U+201A", "a low quote", "'"},
    {"\u2032", "U+2032", "a prime", "'"},
    {"\u00B4", "U+00B4", "an acute accent", "'"},
    {"\u201C", "U+201C", "a curly quote", "\""},
    {"\u201D", "U+201D", "a curly quote", "\""},
    {"\u201E", "U+201E", "a low quote", "\""},
    {"\u2033", "U+2033", "a double prime", "\""},
    {"\u2212", "U+2212", "a mathematical minus sign", "-"},
    {"\u2010", "U+2010", "a hyphen", "-"},
    {"\u2011", "U+2011", "a no-break hyphen", "-"},
    {"\u2013", "U+2013", "an en dash", "-"},
    {"\u2014", "U+2014", "an em dash", "-"},
    {"\u00A0", "U+00A0", "a no-break space", "a space"},
    {"\u202F", "U+202F", "a narrow no-break space", "a space"},
    {"\u2009", "U+2009", "a thin space", "a space"},
    {"\u3000", "U+3000", "a wide space", "a space"},
    {"\u200B", "U+200B", "a zero-width space", "nothing"},
    {"\u00AD", "U+00AD", "a soft hyphen", "nothing"},
};

// What to write for the first of them among `length` bytes of `line` from `at` on; empty without one.
std::string lookalike_hint(std::string_view line, std::size_t at, std::size_t length) {
  const std::size_t end = std::min(line.size(), at + length);
  for (; at < end; ++at) {
    for (const Lookalike& one : lookalikes) {
      if (line.substr(at).starts_with(one.bytes))
        return fmt::format("'{}' is {}, {}: write {}", one.bytes, one.code, one.name, one.plain);
    }
  }
  return {};
}

constexpr std::size_t shown_width = 110;
constexpr std::size_t shown_errors = 50;

bool continues_character(char c) { return (static_cast<unsigned char>(c) & 0xC0U) == 0x80U; }

std::size_t characters(std::string_view bytes) {
  return static_cast<std::size_t>(
      std::count_if(bytes.begin(), bytes.end(), [](char c) { return !continues_character(c); }));
}

/// What can be printed without harm to a terminal: control bytes become '?', tabs stay.
std::string printable(std::string_view bytes) {
  std::string out(bytes);
  for (char& c : out) {
    const auto u = static_cast<unsigned char>(c);
    if ((u < 0x20 && c != '\t') || u == 0x7F) c = '?';
  }
  return out;
}

std::size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> before(b.size() + 1), above(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) above[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t change = above[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, change});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    std::swap(before, above);
    std::swap(above, row);
  }
  return above[b.size()];
}

}  // namespace

SourceText::SourceText(std::string name, std::string text) : name_(std::move(name)), text_(std::move(text)) {
  line_begins_.push_back(0);
  for (std::size_t i = 0; i < text_.size(); ++i) {
    if (text_[i] == '\n') line_begins_.push_back(i + 1);
  }
}

std::string_view SourceText::line_at(std::size_t offset, std::size_t& begin) const {
  const auto next = std::upper_bound(line_begins_.begin(), line_begins_.end(), offset);
  begin = *(next - 1);
  std::size_t end = next == line_begins_.end() ? text_.size() : *next - 1;
  if (end > begin && text_[end - 1] == '\r') --end;
  std::string_view line = std::string_view(text_).substr(begin, end - begin);
  if (begin == 0 && line.substr(0, 3) == "\xEF\xBB\xBF") {
    line.remove_prefix(3);
    begin = 3;
  }
  return line;
}

TextPosition SourceText::position_of(std::size_t offset) const {
  std::size_t begin = 0;
  const std::string_view line = line_at(offset, begin);
  const auto next = std::upper_bound(line_begins_.begin(), line_begins_.end(), offset);
  const std::size_t bytes = std::min(offset > begin ? offset - begin : 0, line.size());
  return {static_cast<std::size_t>(next - line_begins_.begin()), characters(line.substr(0, bytes)) + 1};
}

std::string SourceText::where(std::size_t offset) const {
  const TextPosition at = position_of(offset);
  return name_ + ":" + std::to_string(at.line) + ":" + std::to_string(at.column);
}

std::string SourceText::format(const Diagnostic& d) const {
  const std::string kind = d.severity == Severity::error ? "error: " : "warning: ";
  std::string out, hint = d.hint;
  if (d.length == 0) {
    out = name_ + ": " + kind + d.message + "\n";
  } else {
    std::size_t begin = 0;
    std::string_view line = line_at(d.offset, begin);
    std::size_t at = std::min(d.offset > begin ? d.offset - begin : 0, line.size());
    const std::string character = lookalike_hint(line, at, d.length);
    if (!character.empty()) hint = character;
    const std::string number = std::to_string(position_of(d.offset).line);
    const std::string margin(std::max<std::size_t>(number.size(), 4), ' ');
    if (line.size() > shown_width) {  // a window around it, split between characters
      std::size_t first = at > shown_width / 2 ? at - shown_width / 2 : 0;
      // Of characters of at most 4 bytes; a line of other bytes is split anywhere.
      for (int back = 0; back < 3 && first > 0 && continues_character(line[first]); ++back) --first;
      line = line.substr(first, shown_width);
      at -= first;
    }
    std::string blank;
    for (char c : line.substr(0, at)) {
      if (c == '\t')
        blank += '\t';
      else if (!continues_character(c))
        blank += ' ';
    }
    const std::string_view marked = line.substr(at, std::min(d.length, line.size() - at));
    const std::size_t width = std::max<std::size_t>(characters(marked), 1);
    out = where(d.offset) + ": " + kind + d.message + "\n";
    out += margin.substr(0, margin.size() - number.size()) + number + " | " + printable(line);
    out += "\n" + margin + " | " + blank + "^" + std::string(width - 1, '~') + "\n";
  }
  if (!d.expected.empty()) out += "     = expected " + d.expected + "\n";
  if (!hint.empty()) out += "     = " + hint + "\n";
  return out;
}

std::string format_all(const SourceText& source, std::vector<Diagnostic> diagnostics) {
  std::stable_sort(diagnostics.begin(), diagnostics.end(), [](const auto& a, const auto& b) {
    return std::pair(a.length == 0, a.offset) < std::pair(b.length == 0, b.offset);
  });
  std::string out;
  std::size_t shown = 0;
  for (const Diagnostic& d : diagnostics) {
    if (++shown <= shown_errors) out += source.format(d);
  }
  if (shown > shown_errors) {
    out += source.name() + ": and " + std::to_string(shown - shown_errors) + " more\n";
  }
  return out;
}

std::string read_deck_file(const std::string& path, const std::string& what) {
  constexpr std::size_t largest = 1 << 20;
  std::ifstream file(path, std::ios::binary);
  std::string text;
  if (file) {
    std::vector<char> bytes(largest + 1);
    file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    text.assign(bytes.data(), static_cast<std::size_t>(file.gcount()));
  }
  if (!file.eof()) {
    const bool large = text.size() > largest;
    const int error = errno;
    const bool is_folder = !large && files::kind_of(path) == files::Kind::folder;
    const bool is_of_system = !large && !is_folder && error != ENOENT && error != ENOTDIR && error != EACCES;
    fail(is_of_system ? ExitCode::system_error : ExitCode::deck_error,
         {"the " + what + (large ? " is too large" : " cannot be read"), large ? "at most 1 MiB of text" : "a " + what,
          large       ? ""
          : is_folder ? "a directory"
                      : std::strerror(error),
          whole_path(path), large ? "is this the token file?" : "check the path and its permissions"});
  }
  return text;
}

std::string quoted(std::string_view word) {
  const bool whole = word.size() <= 40;
  std::size_t end = whole ? word.size() : 40;
  while (!whole && end > 0 && continues_character(word[end])) --end;
  return "'" + printable(word.substr(0, end)) + (whole ? "'" : "...'");
}

std::string to_lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return out;
}

std::string nearest_word(std::string_view word, const std::vector<std::string>& candidates) {
  if (word.empty() || word.size() > 64) return {};
  const std::string lower = to_lower(word);
  std::string best;
  std::size_t best_distance = std::max<std::size_t>(1, lower.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    const std::size_t distance = edit_distance(lower, to_lower(candidate));
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  if (!best.empty() || lower.size() < 4) return best;
  for (const std::string& candidate : candidates) {
    const bool is_longer = to_lower(candidate).starts_with(lower + "_");
    if (is_longer && (best.empty() || candidate.size() < best.size())) best = candidate;
  }
  return best;
}

}  // namespace nanotron::deck
