// Groups, keys and subscripts of a namelist; the value lists are in namelist_list.cpp.
#include "nanotron/deck/namelist/namelist.hpp"

#include <algorithm>

#include "namelist_reader.hpp"
#include "nanotron/deck/namelist/suggestions.hpp"

namespace nanotron::deck {
namespace detail {

constexpr std::size_t max_diagnostics = 200;  // then the reading stops: the rest is noise

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }
bool is_name_begin(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_name(char c) { return is_name_begin(c) || (c >= '0' && c <= '9'); }
bool ends_token(char c) { return is_blank(c) || c == ',' || c == '/' || c == '!' || c == '=' || c == ';' || c == '('; }

void NamelistReader::error(std::size_t offset, std::size_t length, std::string message, std::string expected,
                           std::string hint) {
  result_.diagnostics.push_back({Severity::error, offset, std::max<std::size_t>(length, 1), std::move(message),
                                 std::move(expected), std::move(hint)});
  if (result_.diagnostics.size() >= max_diagnostics) at_ = text_.size();
}

void NamelistReader::skip_blanks() {
  while (!done() && (peek() == ' ' || peek() == '\t')) ++at_;
}

void NamelistReader::skip_gaps() {
  while (!done()) {
    if (is_blank(peek())) {
      ++at_;
    } else if (peek() == '!') {
      const std::size_t end = text_.find('\n', at_);
      at_ = end == std::string_view::npos ? text_.size() : end + 1;
    } else {
      return;
    }
  }
}

std::string_view NamelistReader::take_name() {
  const std::size_t begin = at_;
  while (!done() && is_name(peek())) ++at_;
  return text_.substr(begin, at_ - begin);
}

bool NamelistReader::name_follows() const {
  if (done() || !is_name_begin(peek())) return false;
  NamelistReader ahead(source_, groups_);
  ahead.at_ = at_;
  ahead.take_name();
  ahead.skip_blanks();
  if (ahead.done()) return false;
  if (ahead.peek() == '(' || ahead.peek() == '%') return true;
  ahead.skip_gaps();
  return !ahead.done() && ahead.peek() == '=';
}

bool NamelistReader::at_group_end(std::size_t& length) const {
  length = 1;
  if (peek() == '/') return true;
  if (peek() != '&' && peek() != '$') return false;
  length = 4;
  const bool word = to_lower(text_.substr(at_ + 1, 3)) == "end";
  return word && (at_ + 4 >= text_.size() || !is_name(text_[at_ + 4]));
}

Namelists NamelistReader::read_all() {
  if (text_.substr(0, 3) == "\xEF\xBB\xBF") at_ = 3;
  if (text_.substr(0, 2) == "\xFF\xFE" || text_.substr(0, 2) == "\xFE\xFF") {
    error(0, 1, "the deck is in UTF-16", "ASCII or UTF-8", "save it as UTF-8");
    return std::move(result_);
  }
  for (skip_gaps(); !done(); skip_gaps()) {
    if (peek() == '&' || peek() == '$') {
      read_group();
    } else {
      skip_stray_text();
    }
  }
  return std::move(result_);
}

void NamelistReader::skip_stray_text() {
  const std::size_t begin = at_;
  const std::size_t line_end = std::min(text_.find('\n', at_), text_.size());
  bool line_begins = false;
  for (; !done(); ++at_) {
    if (is_blank(peek())) {
      line_begins = line_begins || peek() == '\n';
      continue;
    }
    if ((peek() == '&' || peek() == '$') && at_ > begin) {
      const std::size_t keep = at_++;
      const std::string word = to_lower(take_name());
      at_ = keep;
      const bool known =
          std::any_of(groups_.begin(), groups_.end(), [&](const NamelistGroup& g) { return g.name == word; });
      if (known || (line_begins && !word.empty() && word != "end")) break;
    }
    line_begins = false;
  }
  std::string hint = "begin the line with '!' if it is a comment";
  if (!last_close_.empty()) {
    hint = "the group before it ends at " + last_close_ + "; put strings with a '/' in quotes, begin comments with '!'";
  }
  if (!long_string_.empty()) {
    hint = "the string at " + long_string_ + " runs over several lines; is its closing quote missing?";
  }
  error(begin, std::min(line_end, at_) - begin, "text outside a group", "'&' and a group's name", hint);
}

void NamelistReader::read_group() {
  const std::size_t begin = at_++;
  const std::string_view word = take_name();
  std::string name = to_lower(word);
  if (name.empty() || name == "end") {
    error(begin, at_ - begin, name.empty() ? "no group name after '&'" : "no group is open here",
          "a group's name directly after '&'");
    if (name.empty()) skip_stray_text();
    return;
  }
  const auto found =
      std::find_if(groups_.begin(), groups_.end(), [&](const NamelistGroup& g) { return g.name == name; });
  const NamelistGroup* group = found == groups_.end() ? nullptr : &*found;
  if (group == nullptr) {
    std::string list;
    for (const NamelistGroup& g : groups_) list += (list.empty() ? "&" : " &") + g.name;
    const std::string near = suggest_group(name, groups_);
    error(begin, at_ - begin, "unknown group '&" + std::string(word.substr(0, 40)) + "'", "one of " + list,
          near.empty() ? "" : "did you mean '&" + near + "'?");
    for (const NamelistGroup& g : groups_) {
      if (g.name == near && result_.groups.count(near) == 0) group = &g, name = near;
    }
  }
  const auto [entry, first] = result_.groups.emplace(name, begin);
  if (!first && group != nullptr) {
    error(begin, at_ - begin, "group '&" + name + "' is given twice", "each group at most once",
          "the first one is at " + source_.where(entry->second) + "; move these keys there");
  }
  if (!done() && !is_blank(peek()) && peek() != '/' && peek() != '!' && peek() != ',') {
    error(at_, 1, "a blank must follow the group's name");
  }
  read_body(group, name, begin, first);
}

void NamelistReader::read_body(const NamelistGroup* group, const std::string& name, std::size_t begin, bool first) {
  const std::size_t head = name.size() + 1;
  for (skip_gaps(); !done(); skip_gaps()) {
    std::size_t length = 0;
    if (at_group_end(length)) {
      last_close_ = source_.where(at_);
      at_ += length;
      return;
    }
    if (peek() == '&' || peek() == '$') {
      error(at_, 1, "group '&" + name + "' is not closed before the next one begins",
            "'/' on a line of its own before it", "it begins at " + source_.where(begin));
      return;
    }
    if (is_name_begin(peek())) {
      read_object(group, name, first);
      continue;
    }
    const std::size_t stray = at_;
    skip_statement();
    error(stray, std::min(at_, std::min(text_.find('\n', stray), text_.size())) - stray,
          "this is neither a key nor the end of group '&" + name + "'", "name = value, or '/'");
  }
  error(begin, head, "group '&" + name + "' is not closed", "'/' after its last value",
        "the deck ends at line " + std::to_string(source_.position_of(text_.size()).line) + " inside this group");
}

/// After an error: on to the next key, the end of the group or the next group.
void NamelistReader::skip_statement() {
  const std::size_t begin = at_;
  while (!done()) {
    std::size_t length = 0;
    if (at_ > begin && (at_group_end(length) || name_follows())) return;
    if (peek() == '&' || peek() == '$') return;
    if (peek() == '\'' || peek() == '"') {
      const std::size_t close = text_.find_first_of(peek() == '"' ? "\"\n" : "'\n", at_ + 1);
      const bool closed = close < text_.size() && text_[close] == peek();
      at_ = closed ? close + 1 : at_ + 1;
    } else if (is_name(peek())) {
      take_name();
    } else {
      ++at_;
    }
    skip_gaps();
  }
}

const Variable* NamelistReader::find_variable(const NamelistGroup* group, std::string_view word, std::size_t offset) {
  if (group == nullptr) return nullptr;
  const std::string name = to_lower(word);
  for (const Variable& v : group->variables) {
    if (v.name == name) return &v;
  }
  const Suggestion meant = suggest_key(name, group->name, groups_);
  if (!meant.key.empty()) result_.refused.emplace(meant.group, meant.key);
  error(offset, word.size(), "unknown key " + quoted(word) + " in group '&" + group->name + "'", "",
        meant.hint.empty() ? "nanotron_hpc --help " + group->name + " lists its keys" : meant.hint);
  return nullptr;
}

void NamelistReader::read_object(const NamelistGroup* group, const std::string& group_name, bool keep) {
  Object object;
  object.group = group_name;
  object.name_offset = at_;
  const std::string_view word = take_name();
  object.name_length = word.size();
  object.variable = find_variable(group, word, object.name_offset);
  const Variable* variable = object.variable;
  object.target.count = variable == nullptr ? 1 : std::max<std::int64_t>(variable->extent, 1);
  skip_blanks();
  bool good = true;
  object.has_subscript = !done() && peek() == '(';
  if (object.has_subscript) good = read_subscript(object);
  if (good && !done() && peek() == '%') {
    error(at_, 1, "keys have no components", "'=' after " + quoted(word),
          "inside a group write only the key, without 'group%'");
    good = false;
  }
  skip_gaps();
  if (good && (done() || peek() != '=')) {
    if (group == nullptr || variable != nullptr) {
      error(object.name_offset, word.size(), "no '=' after " + quoted(word), "name = value, or '/' to end the group");
    }
    good = false;
  }
  if (variable != nullptr && (!good || object.variable == nullptr)) {
    result_.refused.emplace(group_name, variable->name);
  }
  if (!good) {
    object.variable = nullptr;
    while (!done() && peek() != '=' && peek() != '/' && peek() != '&' && peek() != '$' && !name_follows()) {
      if (is_name(peek())) {
        take_name();
      } else {
        ++at_;
      }
      skip_gaps();
    }
    if (done() || peek() != '=') return;
  }
  ++at_;
  read_values(object);
  if (keep && object.variable != nullptr) store(object);
}

void NamelistReader::store(Object& object) {
  const std::pair key(object.group, object.variable->name);
  Assigned& assigned = result_.assigned[key];
  if (!assigned.elements.empty()) {
    bool twice = false;
    for (std::size_t i = 0; i < object.values.elements.size(); ++i) {
      twice = twice || (object.values.elements[i] && assigned.elements[i]);
    }
    if (twice && result_.diagnostics.size() < max_diagnostics) {
      result_.diagnostics.push_back({Severity::warning, object.name_offset, object.name_length,
                                     "'" + key.second + "' is set twice; this value is used", "",
                                     "the first one is at " + source_.where(assigned.key_offset)});
    }
  }
  assigned.elements.resize(object.values.elements.size());
  assigned.key_offset = object.name_offset;
  assigned.key_length = object.name_length;
  assigned.is_whole = assigned.is_whole || !object.has_subscript;
  for (std::size_t i = 0; i < assigned.elements.size(); ++i) {
    if (object.values.elements[i]) assigned.elements[i] = std::move(object.values.elements[i]);
  }
}

/// "(3)", "(2:5)", "(:)", "(5:1:-2)". Leaves at_ after ')'; false when no '=' can be trusted.
bool NamelistReader::read_subscript(Object& object) {
  const std::size_t open = at_++;
  std::vector<std::optional<std::int64_t>> parts(1);
  bool section = false;
  for (skip_blanks(); !done() && peek() != ')'; skip_blanks()) {
    const std::size_t begin = at_;
    if (peek() == ':' && parts.size() < 3) {
      ++at_;
      section = true;
      parts.emplace_back();
      continue;
    }
    if (peek() == '+' || peek() == '-') ++at_;
    while (!done() && peek() >= '0' && peek() <= '9') ++at_;
    std::string problem;
    const auto number = convert_bare(text_.substr(begin, at_ - begin), ValueType::integer, problem);
    if (!number || parts.back()) {
      error(begin, at_ - begin, problem.empty() ? "this is not a subscript" : problem,
            "name(i), name(i:j) or name(i:j:stride)");
      return false;
    }
    parts.back() = std::get<std::int64_t>(*number);
  }
  if (done()) {
    error(open, 1, "missing ')' of this subscript");
    return false;
  }
  ++at_;
  if (object.variable == nullptr) return true;
  if (object.variable->extent == 0) {
    error(open, at_ - open, "'" + object.variable->name + "' is not an array", "no subscript");
    object.variable = nullptr;
    return true;
  }
  if (!section_to_target(object, open, parts, section)) object.variable = nullptr;
  return true;
}

bool NamelistReader::section_to_target(Object& object, std::size_t open,
                                       const std::vector<std::optional<std::int64_t>>& parts, bool section) {
  const std::int64_t extent = object.variable->extent;
  const std::string range = "1 to " + std::to_string(extent);
  if (!section && !parts[0]) {
    error(open, at_ - open, "an empty subscript", "a number of " + range);
    return false;
  }
  const std::int64_t stride = parts.size() > 2 ? parts[2].value_or(0) : 1;
  const std::int64_t first = parts[0].value_or(1);
  const std::int64_t last = section ? parts[1].value_or(extent) : first;
  const bool inside = first >= 1 && first <= extent && last >= 1 && last <= extent;
  if (!inside) {
    error(open, at_ - open, "a subscript outside of '" + object.variable->name + "'", range);
    return false;
  }
  if (stride == 0 || (stride > 0) != (last >= first)) {
    if (stride == 0 || first != last) {
      error(open, at_ - open, "this section holds no element", "at least one of " + range);
      return false;
    }
  }
  const std::int64_t reach = last > first ? last - first : first - last;
  const std::int64_t step = stride > 0 ? stride : (stride < -extent ? extent : -stride);
  object.target = {first - 1, stride > 0 ? step : -step, reach / step + 1};
  return true;
}

}  // namespace detail

bool Namelists::has_errors() const {
  return std::any_of(diagnostics.begin(), diagnostics.end(),
                     [](const Diagnostic& d) { return d.severity == Severity::error; });
}

Namelists read_namelists(const SourceText& source, const std::vector<NamelistGroup>& groups) {
  return detail::NamelistReader(source, groups).read_all();
}

}  // namespace nanotron::deck
