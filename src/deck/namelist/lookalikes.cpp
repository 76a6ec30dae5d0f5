#include "lookalikes.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace nanotron::deck::detail {
namespace {

struct Lookalike {
  std::string_view bytes, code, name, plain;
};

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
    {"\u2212", "U+2212", "a minus sign of mathematics", "-"},
    {"\u2010", "U+2010", "a hyphen", "-"},
    {"\u2011", "U+2011", "a no-break hyphen", "-"},
    {"\u2013", "U+2013", "an en dash", "-"},
    {"\u2014", "U+2014", "an em dash", "-"},
    {"\u00A0", "U+00A0", "a no-break space", "a space"},
    {"\u202F", "U+202F", "a narrow no-break space", "a space"},
    {"\u2009", "U+2009", "a thin space", "a space"},
    {"\u3000", "U+3000", "a wide space", "a space"},
    {"\u200B", "U+200B", "a space of no width", "nothing"},
    {"\u00AD", "U+00AD", "a soft hyphen", "nothing"},
};

}  // namespace

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

}  // namespace nanotron::deck::detail
