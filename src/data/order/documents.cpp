#include "nanotron/data/order/documents.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "nanotron/base/error.hpp"

namespace nanotron::data {

Documents::Documents(const TokenFile& file) : offsets_(file.read_documents()) {
  if (offsets_.empty())
    fail(ExitCode::data_error, {"the token file has no document offsets",
                                "/documents, uint64 start offsets, for "
                                "data%document_mask = 'block_diagonal'",
                                "no /documents, or an empty one", file.path(),
                                "make the file with tools/nanotron_tokenize.py, or set data%document_mask = 'none'"});
  const auto size = static_cast<std::uint64_t>(file.size());
  const auto falls = std::adjacent_find(offsets_.begin(), offsets_.end(), std::greater<>());
  if (falls == offsets_.end() && offsets_.back() <= size) return;
  const auto wrong = falls == offsets_.end() ? offsets_.end() - 1 : falls + 1;
  fail(ExitCode::data_error,
       {"/documents is damaged", fmt::format("increasing offsets, at most {}", size),
        fmt::format("{} at index {}", *wrong, wrong - offsets_.begin()), file.path(), "rewrite the file"});
}

void Documents::starts(index_t first, std::span<std::int32_t> out) const {
  auto next = std::upper_bound(offsets_.begin(), offsets_.end(), static_cast<std::uint64_t>(first));
  std::int32_t start = 0;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const auto token = static_cast<std::uint64_t>(first) + i;
    for (; next != offsets_.end() && *next <= token; ++next) start = static_cast<std::int32_t>(i);
    out[i] = start;
  }
}

std::vector<Range> Documents::ranges(index_t tokens) const {
  std::vector<Range> found;
  index_t begin = 0;
  const auto add = [&](index_t end) {
    if (end > begin) found.push_back({begin, end});
    begin = end;
  };
  for (const std::uint64_t offset : offsets_) add(static_cast<index_t>(offset));
  add(tokens);
  return found;
}

}  // namespace nanotron::data
