#include "nanotron/deck/reals.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>

namespace nanotron::deck {

std::optional<std::vector<double>> reals(std::string_view text) {
  constexpr std::string_view separators = " ,\t";
  std::vector<double> values;
  for (std::size_t begin = text.find_first_not_of(separators); begin < text.size();) {
    const std::string_view word = text.substr(begin, text.find_first_of(separators, begin) - begin);
    double value = 0.0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    if (error != std::errc() || end != word.data() + word.size() || !std::isfinite(value)) return std::nullopt;
    values.push_back(value);
    begin = text.find_first_not_of(separators, begin + word.size());
  }
  return values;
}

}  // namespace nanotron::deck
