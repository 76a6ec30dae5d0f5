#include "foreign_deck.hpp"

#include <cstddef>

#include "namelist_reader.hpp"
#include "nanotron/base/error.hpp"

namespace nanotron::deck::detail {
namespace {

std::string_view trimmed(std::string_view line) {
  while (!line.empty() && is_blank(line.front())) line.remove_prefix(1);
  while (!line.empty() && is_blank(line.back())) line.remove_suffix(1);
  return line;
}

/// "key:" or "- key: value", the key being a name or quoted.
bool is_yaml(std::string_view line) {
  if (line == "---" || line.starts_with("- ")) return true;
  const std::size_t colon = line.find(':');
  if (colon == std::string_view::npos || colon == 0) return false;
  const bool ends_key = colon + 1 == line.size() || is_blank(line[colon + 1]);
  return ends_key && line.substr(0, colon).find_first_of(" \t=!&$") == std::string_view::npos;
}

/// "[section]" or "[[section]]", with or without a comment after it.
bool is_section(std::string_view line) {
  if (line.size() < 3 || line[0] != '[') return false;
  const std::size_t name = line.find_first_not_of('['), close = line.find(']');
  return name != std::string_view::npos && (is_name_begin(line[name]) || line[name] == '"') &&
         close != std::string_view::npos && line.find_first_of(",=") > close;
}

}  // namespace

std::string foreign_format(std::string_view text) {
  std::size_t lines = 0, yaml = 0, sections = 0;
  char first = '\0';
  if (text.starts_with("\x89HDF\r\n")) return "an HDF5 file";
  if (text.starts_with("\xFF\xFE") || text.starts_with("\xFE\xFF")) return "UTF-16 text: save it as UTF-8";
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    const std::string_view line = trimmed(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (line.empty() || line[0] == '#' || line[0] == '!') continue;
    if ((line[0] == '&' || line[0] == '$') && line.size() > 1 && is_name_begin(line[1])) return "";
    if (first == '\0') first = line[0];
    ++lines;
    yaml += is_yaml(line) ? 1 : 0;
    sections += is_section(line) ? 1 : 0;
  }
  if (first == '{') return "JSON";
  if (sections > 0 && 2 * yaml < lines) return "TOML";
  return yaml > 0 && 2 * yaml >= lines ? "YAML" : "";
}

void require_namelist(std::string_view text, const std::string& file_name) {
  const std::string format = foreign_format(text);
  if (format.empty()) return;
  fail(ExitCode::deck_error,
       {.what = "a deck is a Fortran namelist file, and this looks like " + format,
        .expected = "groups like this one:\n&model\n  hidden_size = 512, num_hidden_layers = 8   ! and so on\n/",
        .found = "no group (a line that begins with '&' and a group's name)",
        .where = file_name,
        .change = "nanotron_hpc --print-defaults > input.deck writes a deck of all keys to start from"});
}

}  // namespace nanotron::deck::detail
