#include "nanotron/base/rank_ranges.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "nanotron/base/error.hpp"

namespace nanotron {

std::string ranks_text(const std::vector<int>& ranks) {
  std::string text;
  for (std::size_t i = 0, last = 0; i < ranks.size(); i = last + 1) {
    last = i;
    const int stride = i + 1 < ranks.size() ? ranks[i + 1] - ranks[i] : 0;
    while (stride > 0 && last + 1 < ranks.size() && ranks[last + 1] - ranks[last] == stride) ++last;
    if (last == i + 1 && stride > 1) last = i;  // two ranks are not a progression
    if (!text.empty()) text += ", ";
    text += last == i ? fmt::format("{}", ranks[i]) : fmt::format("{}-{}", ranks[i], ranks[last]);
    if (last > i && stride > 1) text += fmt::format("/{}", stride);
  }
  return text;
}

std::vector<int> ranks_from(const std::string& text) {
  std::vector<int> ranks;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(", ", begin), text.size());
    const std::string part = text.substr(begin, end - begin);
    int first = 0, last = 0, stride = 1, read = 0;
    if (std::sscanf(part.c_str(), "%d-%d/%d%n", &first, &last, &stride, &read) < 3 || read == 0) {
      stride = 1;
      read = 0;
      if (std::sscanf(part.c_str(), "%d-%d%n", &first, &last, &read) < 2 || read == 0) {
        read = 0;
        if (std::sscanf(part.c_str(), "%d%n", &first, &read) == 1) last = first;
      }
    }
    if (part.empty() || static_cast<std::size_t>(read) != part.size() || stride < 1 || last < first) {
      fail(ExitCode::data_error, {.what = "invalid list of ranks", .expected = "as 0-15, 20", .found = text});
    }
    for (int r = first; r <= last; r += stride) ranks.push_back(r);
    begin = end + 2;
  }
  return ranks;
}

}  // namespace nanotron
