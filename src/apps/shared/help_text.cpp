#include "command_line.hpp"

#include <algorithm>
#include <cstddef>
#include <sstream>

namespace nanotron::apps {
namespace {

constexpr std::size_t width = 80, last_column = 50;
constexpr std::size_t description_column = 30;  // of CLI11, also after a name that fills those before

// Where the last column of a line begins that is set off by two blanks or more; of prose 0.
std::size_t column_of(const std::string& line) {
  std::size_t column = std::min(line.find_first_not_of(' '), line.size());
  for (std::size_t gap = line.find("  ", column); gap < last_column; gap = line.find("  ", column)) {
    const std::size_t after = line.find_first_not_of(' ', gap);
    if (after == std::string::npos) break;
    column = after;
  }
  const bool named = line.starts_with("  -") && column < description_column && line[description_column - 1] == ' ';
  return named ? description_column : column;
}

void append_fitted(std::string& out, const std::string& line) {
  const std::size_t column = column_of(line);
  out += line.substr(0, column);
  std::size_t used = column;
  std::istringstream words(line.substr(column));
  bool begins = true;
  for (std::string word; words >> word; begins = false) {
    if (!begins && used + 1 + word.size() > width) {
      out += "\n" + std::string(column, ' ');
      used = column;
    } else if (!begins) {
      out += ' ';
      ++used;
    }
    out += word;
    used += word.size();
  }
}

}  // namespace

std::string fitted(const std::string& text) {
  std::string out;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line); out += '\n') {
    if (line.size() <= width)
      out += line;
    else
      append_fitted(out, line);
  }
  return out;
}

}  // namespace nanotron::apps
