// The value grammar of Fortran list-directed input: one token -> integer, real, logical.
#include <charconv>
#include <cmath>

#include "nanotron/deck/namelist/namelist.hpp"

namespace nanotron::deck {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

std::size_t count_digits(std::string_view token, std::size_t from) {
  std::size_t n = 0;
  while (from + n < token.size() && is_digit(token[from + n])) ++n;
  return n;
}

std::optional<Scalar> convert_integer(std::string_view token, std::string& problem) {
  const std::size_t sign = token[0] == '+' || token[0] == '-' ? 1 : 0;
  if (sign == token.size() || sign + count_digits(token, sign) != token.size()) return {};
  if (token[0] == '+') token.remove_prefix(1);
  std::int64_t value = 0;
  const auto [end, code] = std::from_chars(token.data(), token.data() + token.size(), value);
  if (code == std::errc::result_out_of_range) {
    problem = "integer overflow: " + quoted(token) + " needs over 64 bits";
    return {};
  }
  return Scalar(value);
}

/// [+-] digits [. digits] [exponent], exponent: (E|D|Q) [+-] digits, or [+-] digits.
struct RealParts {
  bool negative = false;
  std::string_view whole, fraction;
  std::string exponent;
};

std::optional<RealParts> split_real(std::string_view token) {
  RealParts parts;
  std::size_t at = 0;
  if (token[0] == '+' || token[0] == '-') parts.negative = token[at++] == '-';
  parts.whole = token.substr(at, count_digits(token, at));
  at += parts.whole.size();
  if (at < token.size() && token[at] == '.') {
    ++at;
    parts.fraction = token.substr(at, count_digits(token, at));
    at += parts.fraction.size();
  }
  if (parts.whole.empty() && parts.fraction.empty()) return {};
  if (at == token.size()) return parts;
  const char letter = token[at] | 0x20;
  const bool lettered = letter == 'e' || letter == 'd' || letter == 'q';
  if (lettered) ++at;
  const bool sign = at < token.size() && (token[at] == '+' || token[at] == '-');
  if (!lettered && !sign) return {};
  if (sign && token[at++] == '-') parts.exponent = "-";
  const std::size_t digits = count_digits(token, at);
  if (digits == 0 || at + digits != token.size()) return {};
  parts.exponent += token.substr(at, digits);
  return parts;
}

/// Whether the number is at least 1 in magnitude: tells overflow from underflow, nothing more.
bool is_large(const RealParts& parts) {
  const std::size_t in_whole = parts.whole.find_first_not_of('0');
  const std::size_t in_fraction = parts.fraction.find_first_not_of('0');
  if (in_whole == std::string_view::npos && in_fraction == std::string_view::npos) return false;
  if (parts.exponent.size() > 18) return parts.exponent[0] != '-';
  const long long exponent = parts.exponent.empty() ? 0 : std::stoll(parts.exponent);
  const long long leading = in_whole != std::string_view::npos ? static_cast<long long>(parts.whole.size() - in_whole)
                                                               : -static_cast<long long>(in_fraction);
  return leading + exponent > 0;
}

std::optional<Scalar> convert_real(std::string_view token, std::string& problem) {
  std::string_view word = token;
  if (word[0] == '+' || word[0] == '-') word.remove_prefix(1);
  const std::string lower = to_lower(word.substr(0, 9));
  if (lower == "inf" || lower == "infinity" || lower.substr(0, 3) == "nan") {
    problem = "a number must be finite, not " + quoted(token);
    return {};
  }
  const std::optional<RealParts> parts = split_real(token);
  if (!parts) return {};
  std::string text = parts->negative ? "-" : "";
  text += std::string(parts->whole) + "." + std::string(parts->fraction);
  if (!parts->exponent.empty()) text += "e" + parts->exponent;
  double value = 0.0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool out_of_range = code == std::errc::result_out_of_range || !std::isfinite(value);
  if (out_of_range && is_large(*parts)) {
    problem = "real overflow: " + quoted(token) + " is beyond 1.797d308";
    return {};
  }
  if (out_of_range) value = parts->negative ? -0.0 : 0.0;
  return Scalar(value);
}

std::optional<Scalar> convert_logical(std::string_view token) {
  const std::size_t at = token[0] == '.' ? 1 : 0;
  if (at == token.size()) return {};
  const char letter = token[at] | 0x20;
  if (letter != 't' && letter != 'f') return {};
  for (char c : token.substr(at)) {
    const char lower = c | 0x20;
    if (!is_digit(c) && !(lower >= 'a' && lower <= 'z') && c != '.' && c != '_') return {};
  }
  return Scalar(letter == 't');
}

}  // namespace

std::optional<Scalar> convert_bare(std::string_view token, ValueType type, std::string& problem) {
  if (token.empty()) return {};
  switch (type) {
    case ValueType::integer:
      return convert_integer(token, problem);
    case ValueType::real:
      return convert_real(token, problem);
    case ValueType::logical:
      return convert_logical(token);
    case ValueType::string:
      return {};
  }
  return {};
}

std::string type_name(ValueType type) {
  switch (type) {
    case ValueType::integer:
      return "an integer";
    case ValueType::real:
      return "a real number";
    case ValueType::logical:
      return "a logical: .true. or .false.";
    case ValueType::string:
      return "a quoted string";
  }
  return "";
}

}  // namespace nanotron::deck
