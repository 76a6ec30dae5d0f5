#include "nanotron/data/order/documents.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "nanotron/base/error.hpp"

namespace nanotron::data {

std::size_t BestFit::place(index_t length) {
  const auto best = with_room_.lower_bound(length);
  std::size_t bin = bins_;
  index_t room = capacity_;
  if (best == with_room_.end()) {
    ++bins_;
  } else {
    bin = best->second.back();
    room = best->first;
    best->second.pop_back();
    if (best->second.empty()) with_room_.erase(best);
  }
  if (room > length) with_room_[room - length].push_back(bin);
  return bin;
}

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

namespace {

constexpr index_t max_parts = 256;

// The documents for validation: at the beginning of each part of the file, as many as bring the held-out tokens up to
// `due`. Whether a document is held out does not depend on its own length. At least one is.
std::vector<bool> held_out(const std::vector<Range>& documents, double fraction) {
  index_t all = 0, before = 0, held = 0;
  for (const Range& d : documents) all += d.size();
  const index_t parts = std::min<index_t>(max_parts, static_cast<index_t>(documents.size()));
  std::vector<bool> is_held(documents.size(), false);
  for (std::size_t i = 0; i < documents.size(); ++i) {
    const double due =
        fraction * static_cast<double>(all) * static_cast<double>(before * parts / all) / static_cast<double>(parts);
    is_held[i] = static_cast<double>(held) < due || (held == 0 && i + 1 == documents.size());
    before += documents[i].size();
    if (is_held[i]) held += documents[i].size();
  }
  return is_held;
}

}  // namespace

PackedDocuments::PackedDocuments(const deck::DataConfig& data, const TokenFile& file, Split split)
    : file_(file), length_(data.sequence_length) {
  std::vector<Range> documents = Documents(file).ranges(file.size());
  if (data.validation_path.empty() && data.validation_fraction > 0.0) {
    const std::vector<bool> is_held = held_out(documents, data.validation_fraction);
    std::size_t i = 0;
    std::erase_if(documents, [&](const Range&) { return is_held[i++] == (split == Split::training); });
  }

  std::vector<Segment> segments;
  for (const Range& d : documents) {
    for (index_t at = d.begin; at + 1 < d.end; at += length_)
      segments.push_back({at, std::min(length_, d.end - 1 - at)});
  }
  std::ranges::sort(segments, [](const Segment& a, const Segment& b) {
    return std::pair(b.length, a.token) < std::pair(a.length, b.token);  // longest first, equal ones in file order
  });

  BestFit sequences(length_);
  std::vector<std::size_t> sequence_of, used;
  for (const Segment& segment : segments) {
    sequence_of.push_back(sequences.place(segment.length));
    used.resize(sequences.bins());
    ++used[sequence_of.back()];
  }

  begins_.push_back(0);
  for (const std::size_t count : used) begins_.push_back(begins_.back() + count);
  segments_.resize(segments.size());
  std::vector<std::size_t> next(begins_.begin(), begins_.end() - 1);
  for (std::size_t i = 0; i < segments.size(); ++i) segments_[next[sequence_of[i]]++] = segments[i];
}

void PackedDocuments::read(index_t sequence, const Range& positions, std::int32_t* inputs,
                           std::int32_t* targets) const {
  index_t at = 0;
  for (const Segment& segment : segments_of(sequence)) {
    const index_t begin = std::max(at, positions.begin), end = std::min(at + segment.length, positions.end);
    if (begin < end) {
      const index_t first = segment.token + begin - at, out = begin - positions.begin;
      file_.read_with_next(first, end - begin, inputs + out, targets + out);
      file_.loss_mask().apply(first + 1, {targets + out, static_cast<std::size_t>(end - begin)});
    }
    at += segment.length;
  }
  const index_t left = positions.end - std::max(at, positions.begin);
  if (left <= 0) return;
  std::fill_n(inputs + positions.size() - left, left, 0);
  std::fill_n(targets + positions.size() - left, left, no_target);
}

void PackedDocuments::document_starts(index_t sequence, std::span<std::int32_t> out) const {
  std::size_t at = 0;
  for (const Segment& segment : segments_of(sequence)) {
    std::fill_n(out.begin() + static_cast<std::ptrdiff_t>(at), segment.length, static_cast<std::int32_t>(at));
    at += static_cast<std::size_t>(segment.length);
  }
  for (; at < out.size(); ++at) out[at] = static_cast<std::int32_t>(at);
}

index_t PackedDocuments::tokens(index_t sequence) const {
  index_t sum = 0;
  for (const Segment& segment : segments_of(sequence)) sum += segment.length;
  return sum;
}

double PackedDocuments::filled() const {
  index_t sum = 0;
  for (const Segment& segment : segments_) sum += segment.length;
  return count() == 0 ? 0.0 : static_cast<double>(sum) / static_cast<double>(count() * length_);
}

}  // namespace nanotron::data
