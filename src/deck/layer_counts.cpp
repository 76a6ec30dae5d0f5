#include "nanotron/deck/layer_counts.hpp"

#include <charconv>

namespace nanotron::deck {

std::optional<std::vector<std::int64_t>> layer_counts(std::string_view text) {
  std::vector<std::int64_t> counts;
  const char* at = text.data();
  const char* const end = at + text.size();
  const auto skip_blanks = [&] {
    while (at != end && *at == ' ') ++at;
  };
  for (skip_blanks(); at != end;) {
    std::int64_t count = 0;
    const auto [behind, error] = std::from_chars(at, end, count);
    if (error != std::errc() || count < 1) return std::nullopt;
    counts.push_back(count);
    at = behind;
    skip_blanks();
    if (at == end) break;
    if (*at == ',') {
      ++at;
      skip_blanks();
      if (at == end) return std::nullopt;
    } else if (at == behind) {
      return std::nullopt;
    }
  }
  if (counts.empty()) return std::nullopt;
  return counts;
}

}  // namespace nanotron::deck
