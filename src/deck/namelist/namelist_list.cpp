// Value lists of a namelist: separators, nulls, repeat counts, strings over several lines.
#include <algorithm>
#include <cmath>
#include <optional>
#include <regex>

#include "namelist_reader.hpp"

namespace nanotron::deck::detail {
namespace {

/// The seconds of D-HH:MM:SS, HH:MM:SS or MM:SS, as the schedulers write times.
std::optional<std::int64_t> seconds_of(std::string_view token) {
  const std::string text(token);
  std::smatch part;
  static const std::regex clock("(?:(?:([0-9]{1,3})-)?([0-9]{1,4}):)?([0-9]{1,4}):([0-9]{1,4})");
  if (text.size() > 20 || !std::regex_match(text, part, clock)) return {};
  const auto number = [&](std::size_t i) { return part[i].matched ? std::stoll(part[i]) : 0; };
  return ((number(1) * 24 + number(2)) * 60 + number(3)) * 60 + number(4);
}

std::string hint_for(std::string_view token, ValueType type) {
  std::string problem;
  if (type == ValueType::string) {
    return token.find_first_of("'\"") == std::string_view::npos
               ? "write '" + std::string(token.substr(0, 40)) + "' with the quotes"
               : "";
  }
  if (const std::optional<std::int64_t> seconds = seconds_of(token)) {
    return "a time is given in seconds: " + std::to_string(*seconds);
  }
  if (type == ValueType::integer) {
    const auto real = convert_bare(token, ValueType::real, problem);
    const double value = real ? std::get<double>(*real) : 0.5;
    if (value == std::floor(value) && std::fabs(value) < 1e15) {
      return "write " + std::to_string(static_cast<std::int64_t>(value));
    }
  }
  if (token.find_first_of("&$") != std::string_view::npos) return "put a blank before '&' or '$'";
  if (type == ValueType::logical) {
    const std::string lower = to_lower(token.substr(0, 8));
    if (lower == "1" || lower == "yes" || lower == "on") return "write .true.";
    if (lower == "0" || lower == "no" || lower == "off") return "write .false.";
  }
  return "";
}

}  // namespace

void NamelistReader::refuse(Object& object) {
  object.refused = true;
  if (object.variable != nullptr) result_.refused.emplace(object.group, object.variable->name);
}

void NamelistReader::refuse_value(Object& object, std::size_t offset, std::size_t length, std::string message,
                                  std::string expected, std::string hint) {
  if (!object.refused && object.variable != nullptr) {
    error(offset, length, std::move(message), std::move(expected), std::move(hint));
  }
  refuse(object);
}

/// path = /data/x: Fortran takes this for an empty value and the group's end. Never meant so.
bool NamelistReader::at_unquoted_path(const Object& object) const {
  const bool text = object.variable != nullptr && object.variable->type == ValueType::string;
  if (!text || object.filled > 0 || object.refused || at_ + 1 >= text_.size()) return false;
  const char next = text_[at_ + 1];
  return !is_blank(next) && next != '!' && next != '&' && next != '$';
}

/// From after '=' to the next key, the group's end or the end of the text.
void NamelistReader::read_values(Object& object) {
  if (object.variable != nullptr) {
    const auto elements = std::max<std::int64_t>(object.variable->extent, 1);
    object.values.elements.resize(static_cast<std::size_t>(elements));
  }
  bool after_comma = true;  // a comma now means a null value
  for (skip_gaps(); !done(); skip_gaps()) {
    const char c = peek();
    const bool slash_path = c == '/' && at_unquoted_path(object);
    if ((c == '/' && !slash_path) || c == '&' || c == '$' || name_follows()) return;
    if (c == ',') {
      if (after_comma) put(object, 1, std::nullopt, at_, 1);
      after_comma = true;
      ++at_;
      continue;
    }
    if (c == ';' || c == '=' || c == '(') {
      const std::string what = c == ';'   ? "';' is not a separator"
                               : c == '=' ? "an '=' where a value should be"
                                          : "a '(' where a value should be";
      refuse_value(object, at_, 1, what, "values separated by commas or blanks");
      ++at_;
      continue;
    }
    read_value(object);
    after_comma = false;
  }
}

void NamelistReader::read_value(Object& object) {
  const std::size_t begin = at_;
  const std::optional<std::int64_t> repeat = read_repeat(object);
  if (!repeat) return;
  const bool repeated = at_ > begin;
  if (repeated && (done() || ends_token(peek()))) {
    put(object, *repeat, std::nullopt, begin, at_ - begin);
  } else if (peek() == '\'' || peek() == '"') {
    read_quoted(object, *repeat);
  } else {
    read_bare(object, *repeat);
  }
}

/// The r of "r*c", or 1. Nothing, and the token skipped, when it is not a legal count.
std::optional<std::int64_t> NamelistReader::read_repeat(Object& object) {
  std::size_t end = at_;
  while (end < text_.size() && text_[end] >= '0' && text_[end] <= '9') ++end;
  if (end == at_ || end >= text_.size() || text_[end] != '*') return 1;
  const std::string_view digits = text_.substr(at_, end - at_);
  const std::size_t begin = at_;
  std::string problem;
  const auto number = convert_bare(digits, ValueType::integer, problem);
  at_ = end + 1;
  if (number && std::get<std::int64_t>(*number) > 0) return std::get<std::int64_t>(*number);
  refuse_value(object, begin, digits.size(), number ? "a repeat count of zero" : "this repeat count is too large",
               "a count of 1 or more before '*'");
  while (!done() && !ends_token(peek())) ++at_;
  return std::nullopt;
}

/// A quote that was forgotten ends at the next one, lines below. Says so where it begins and goes
/// on after that line, so that the other mistakes of the deck are found too.
bool NamelistReader::unclosed_quote(std::size_t quote, std::size_t end, const std::string& why) {
  const std::size_t line_end = std::min(text_.find('\n', quote), text_.size());
  if (end <= line_end && end < text_.size()) return false;
  std::size_t shown = line_end;
  if (shown > quote + 1 && text_[shown - 1] == '\r') --shown;
  error(quote, shown - quote, "this string is not closed", std::string("a second ") + text_[quote], why);
  if (!done()) at_ = line_end;
  return true;
}

/// From the opening quote to after the closing one, or to the end of the text: what it says, line ends left
/// out and doubled quotes single. False when it is not closed.
bool NamelistReader::take_quoted(std::string& value) {
  const char quote = peek();
  for (++at_; !done(); ++at_) {
    const char c = peek();
    if (c == quote) {
      ++at_;
      if (done() || peek() != quote) return true;
    }
    const bool end_of_line = c == '\n' || (c == '\r' && at_ + 1 < text_.size() && text_[at_ + 1] == '\n');
    if (!end_of_line) value += c;
  }
  return false;
}

bool NamelistReader::read_quoted(Object& object, std::int64_t repeat) {
  const std::size_t begin = at_;
  const char quote = peek();
  std::string value;
  const bool closed = take_quoted(value);
  const std::size_t end = at_;
  if (!closed) {
    at_ = begin;
    if (!unclosed_quote(begin, text_.size(), "the deck ends inside of it")) at_ = end;
    refuse(object);
    return false;
  }
  if (!done() && !is_blank(peek()) && peek() != ',' && peek() != '/' && peek() != '!') {
    at_ = begin;
    const bool lines =
        unclosed_quote(begin, end, "the next " + std::string(1, quote) + " is at " + source_.where(end - 1));
    if (!lines) {
      at_ = end;
      while (!done() && !ends_token(peek())) ++at_;
      refuse_value(object, end, at_ - end, "unexpected text after the closing quote",
                   "a comma, a blank or the end of the line", "a quote inside of a string is written twice");
    }
    refuse(object);
    return false;
  }
  if (text_.substr(begin, end - begin).find('\n') != std::string_view::npos) {
    long_string_ = source_.where(begin);
  }
  const Variable* variable = object.variable;
  if (variable == nullptr) return true;
  if (variable->type != ValueType::string) {
    std::string problem;
    const bool plain = convert_bare(value, variable->type, problem).has_value();
    refuse_value(object, begin, end - begin, "a string for '" + variable->name + "'", type_name(variable->type),
                 plain ? "remove the quotes" : "");
    return false;
  }
  const auto is_control = [](char c) { return (static_cast<unsigned char>(c) < 0x20 && c != '\t') || c == 0x7F; };
  if (std::any_of(value.begin(), value.end(), is_control)) {
    refuse_value(object, begin, end - begin, "a control character in a string");
    return false;
  }
  value.erase(value.find_last_not_of(' ') + 1);  // as Fortran: trailing blanks mean nothing
  if (value.size() > variable->max_length) {
    refuse_value(object, begin, end - begin, "a string of " + std::to_string(value.size()) + " bytes",
                 "at most " + std::to_string(variable->max_length) + " bytes");
    return false;
  }
  put(object, repeat, Value{Scalar(std::move(value)), begin, end - begin}, begin, end - begin);
  return true;
}

void NamelistReader::read_bare(Object& object, std::int64_t repeat) {
  const std::size_t begin = at_;
  const bool text = object.variable != nullptr && object.variable->type == ValueType::string;
  const auto ends = [&](char c) {  // an unquoted path is one token, for the message's sake
    if (text) return is_blank(c) || c == ',' || c == '!';
    return ends_token(c);
  };
  while (!done() && !ends(peek())) ++at_;
  if (at_ == begin) ++at_;
  const std::string_view token = text_.substr(begin, at_ - begin);
  if (object.variable == nullptr) return;
  const ValueType type = object.variable->type;
  std::string problem;
  std::optional<Scalar> scalar = convert_bare(token, type, problem);
  if (scalar) {
    put(object, repeat, Value{std::move(*scalar), begin, token.size()}, begin, token.size());
    return;
  }
  const bool full = object.filled >= object.target.count;
  if (full) {
    refuse_value(object, begin, token.size(), "unexpected text after the value of '" + object.variable->name + "'",
                 "a key, '/' or the end of the line",
                 token.starts_with('#')      ? "a comment begins with '!'"
                 : type == ValueType::string ? "put the whole string in quotes"
                                             : "");
    return;
  }
  const std::string form = quoted(token) + " is not " + type_name(type);
  refuse_value(object, begin, token.size(), problem.empty() ? form : problem, problem.empty() ? "" : type_name(type),
               hint_for(token, type));
}

void NamelistReader::put(Object& object, std::int64_t repeat, const std::optional<Value>& value, std::size_t offset,
                         std::size_t length) {
  if (object.variable == nullptr || object.refused) return;
  const Target& target = object.target;
  if (repeat > target.count - object.filled) {
    const bool one = target.count == 1;
    refuse_value(object, offset, length, "too many values for '" + object.variable->name + "'",
                 one ? "one value" : "at most " + std::to_string(target.count) + " values");
    return;
  }
  for (std::int64_t i = 0; i < repeat; ++i, ++object.filled) {
    const std::int64_t element = target.first + object.filled * target.stride;
    if (value) object.values.elements[static_cast<std::size_t>(element)] = value;
  }
}

}  // namespace nanotron::deck::detail
