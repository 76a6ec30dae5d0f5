#pragma once
// The text of a deck with its line structure, and the messages that point into it.

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace nanotron::deck {

enum class Severity { error, warning };

/// One finding. `offset` and `length` are bytes of the text it is about; a length of 0 means that
/// the message is about the whole deck (a missing key), and no source line is shown.
struct Diagnostic {
  Severity severity = Severity::error;
  std::size_t offset = 0;
  std::size_t length = 0;
  std::string message;
  std::string expected;  // may be empty
  std::string hint;      // may be empty; "did you mean ..." and the like
};

/// Line and column count from 1; columns are characters (UTF-8), as an editor shows them.
struct TextPosition {
  std::size_t line = 1;
  std::size_t column = 1;
};

class SourceText {
 public:
  SourceText(std::string name, std::string text);

  const std::string& name() const { return name_; }
  std::string_view text() const { return text_; }
  TextPosition position_of(std::size_t offset) const;
  /// "name:line:col"
  std::string where(std::size_t offset) const;
  /// name:line:col: error: message, the source line, a caret line, what was expected, the hint.
  std::string format(const Diagnostic& diagnostic) const;

 private:
  std::string_view line_at(std::size_t offset, std::size_t& begin) const;

  std::string name_;
  std::string text_;
  std::vector<std::size_t> line_begins_;
};

/// All of them in the order of the text, at most 50 errors in full, then their number.
std::string format_all(const SourceText& source, std::vector<Diagnostic> diagnostics);

/// The bytes of the deck, or of `what`. Throws Error(deck_error) when it is missing, unreadable or over 1 MiB.
std::string read_deck_file(const std::string& path, const std::string& what = "namelist file");

/// 'word' for a message: at most 40 characters of it, nothing a terminal would obey.
std::string quoted(std::string_view word);

std::string to_lower(std::string_view text);

/// The candidate nearest to `word` (letters' case ignored, one swap of neighbours counts 1); if none is nearer than
/// about a third of its length, the shortest that begins with it and '_', or "". Method: restricted
/// Damerau-Levenshtein.
std::string nearest_word(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace nanotron::deck
