#include "nanotron/data/order/documents.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "length_buckets.hpp"
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
      segments.push_back({at, static_cast<std::int32_t>(std::min(length_, d.end - 1 - at))});
  }
  std::ranges::sort(segments, [](const Segment& a, const Segment& b) {
    return std::pair(b.length, a.token) < std::pair(a.length, b.token);  // longest first, equal ones in file order
  });

  const std::vector<std::size_t> sequence_of = place(segments, data.length_buckets);
  std::vector<std::size_t> used;
  for (const std::size_t sequence : sequence_of) {
    used.resize(std::max(used.size(), sequence + 1));
    ++used[sequence];
  }

  begins_.push_back(0);
  for (const std::size_t count : used) begins_.push_back(begins_.back() + count);
  segments_.resize(segments.size());
  std::vector<std::size_t> next(begins_.begin(), begins_.end() - 1);
  for (std::size_t i = 0; i < segments.size(); ++i) segments_[next[sequence_of[i]]++] = segments[i];
  for (index_t sequence = 0; data.length_buckets && sequence < count(); ++sequence) {
    const auto first = segments_.begin() + static_cast<std::ptrdiff_t>(begins_[static_cast<std::size_t>(sequence)]);
    std::sort(first, first + std::ssize(segments_of(sequence)),
              [](const Segment& a, const Segment& b) { return a.position < b.position; });
  }
}

// The sequence of each segment; sets their positions.
std::vector<std::size_t> PackedDocuments::place(std::vector<Segment>& segments, bool in_buckets) const {
  std::vector<std::size_t> sequence_of;
  if (in_buckets) {
    LengthBuckets sequences(length_);
    for (Segment& segment : segments) {
      const LengthBuckets::Place place = sequences.place(segment.length);
      segment.position = static_cast<std::int32_t>(place.position);
      sequence_of.push_back(place.bin);
    }
    return sequence_of;
  }
  BestFit sequences(length_);
  std::vector<std::int32_t> filled;
  for (Segment& segment : segments) {
    sequence_of.push_back(sequences.place(segment.length));
    filled.resize(sequences.bins());
    segment.position = filled[sequence_of.back()];
    filled[sequence_of.back()] += segment.length;
  }
  return sequence_of;
}

void PackedDocuments::read(index_t sequence, const Range& positions, std::int32_t* inputs,
                           std::int32_t* targets) const {
  index_t done = positions.begin;
  const auto leave_empty = [&](index_t end) {
    const index_t left = std::min(end, positions.end) - done;
    if (left <= 0) return;
    std::fill_n(inputs + done - positions.begin, left, 0);
    std::fill_n(targets + done - positions.begin, left, no_target);
    done += left;
  };
  for (const Segment& segment : segments_of(sequence)) {
    leave_empty(segment.position);
    const index_t begin = std::max<index_t>(segment.position, positions.begin),
                  end = std::min(segment.end(), positions.end);
    if (begin >= end) continue;
    const index_t first = segment.token + begin - segment.position, out = begin - positions.begin;
    file_.read_with_next(first, end - begin, inputs + out, targets + out);
    file_.loss_mask().apply(first + 1, {targets + out, static_cast<std::size_t>(end - begin)});
    done = end;
  }
  leave_empty(positions.end);
}

void PackedDocuments::document_starts(index_t sequence, std::span<std::int32_t> out) const {
  std::iota(out.begin(), out.end(), 0);
  for (const Segment& segment : segments_of(sequence))
    std::fill_n(out.begin() + segment.position, segment.length, segment.position);
}

index_t PackedDocuments::tokens(index_t sequence) const { return segments_of(sequence).back().end(); }

index_t PackedDocuments::longest_document(index_t sequence) const {
  std::int32_t longest = 0;
  for (const Segment& segment : segments_of(sequence)) longest = std::max(longest, segment.length);
  return longest;
}

double PackedDocuments::filled() const {
  index_t sum = 0;
  for (const Segment& segment : segments_) sum += segment.length;
  return count() == 0 ? 0.0 : static_cast<double>(sum) / static_cast<double>(count() * length_);
}

}  // namespace nanotron::data
