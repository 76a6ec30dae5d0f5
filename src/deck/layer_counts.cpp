#include "nanotron/deck/layer_counts.hpp"

#include <charconv>

namespace nanotron::deck {

std::optional<std::vector<std::int64_t>> layer_counts(std::string_view text) {
  std::vector<std::int64_t> counts;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at != end) {
    if (*at == ' ' || *at == ',') {
      ++at;
      continue;
    }
    std::int64_t count = 0;
    const auto [behind, error] = std::from_chars(at, end, count);
    if (error != std::errc() || count < 1) return std::nullopt;
    counts.push_back(count);
    at = behind;
  }
  return counts;
}

}  // namespace nanotron::deck
