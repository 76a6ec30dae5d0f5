#include "nanotron/data/choices/choice_sequences.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "nanotron/base/error.hpp"
#include "nanotron/data/order/documents.hpp"

namespace nanotron::data {

ChoiceSequences::ChoiceSequences(const ChoiceFile& file, index_t length, ChoicePacking packing)
    : file_(file), length_(length) {
  std::vector<Segment> segments;
  for (const Choice& c : file.choices()) {
    const auto choice = static_cast<index_t>(segments.size());
    if (c.scored > length) {
      fail(ExitCode::data_error, {.what = fmt::format("{} is longer than a sequence", file.name_of(choice)),
                                  .expected = fmt::format("at most {} tokens (data%sequence_length)", length),
                                  .found = fmt::format("{} tokens", c.scored),
                                  .where = file.tokens().path(),
                                  .change = "a longer data%sequence_length, or a shorter choice"});
    }
    const index_t inputs = std::min(c.tokens.size() - 1, length);
    if (inputs < c.tokens.size() - 1) ++cut_;
    segments.push_back({.choice = choice, .token = c.tokens.end - 1 - inputs, .length = inputs, .scored = c.scored});
  }
  std::vector<std::size_t> sequence_of;
  std::size_t sequences = segments.size();
  if (packing == ChoicePacking::several) {
    std::ranges::stable_sort(segments, std::ranges::greater{}, &Segment::length);
    BestFit bins(length);
    for (const Segment& segment : segments) sequence_of.push_back(bins.place(segment.length));
    sequences = bins.bins();
  } else {
    for (std::size_t i = 0; i < segments.size(); ++i) sequence_of.push_back(i);
  }
  begins_.assign(sequences + 1, 0);
  for (const std::size_t s : sequence_of) ++begins_[s + 1];
  for (std::size_t s = 0; s < sequences; ++s) begins_[s + 1] += begins_[s];
  segments_.resize(segments.size());
  std::vector<std::size_t> next(begins_.begin(), begins_.end() - 1);
  std::vector<index_t> used(sequences, 0);
  for (std::size_t i = 0; i < segments.size(); ++i) {
    const std::size_t s = sequence_of[i];
    segments[i].position = used[s];
    used[s] += segments[i].length;
    segments_[next[s]++] = segments[i];
  }
}

std::span<const ChoiceSequences::Segment> ChoiceSequences::segments(index_t sequence) const {
  const auto s = static_cast<std::size_t>(sequence);
  return std::span(segments_).subspan(begins_[s], begins_[s + 1] - begins_[s]);
}

void ChoiceSequences::read(index_t sequence, const Range& positions, std::int32_t* inputs,
                           std::int32_t* targets) const {
  std::fill_n(inputs, positions.size(), 0);
  std::fill_n(targets, positions.size(), no_target);
  for (const Segment& segment : segments(sequence)) {
    const Range at{segment.position, segment.position + segment.length};
    const Range here{std::max(at.begin, positions.begin), std::min(at.end, positions.end)};
    if (here.size() <= 0) continue;
    file_.tokens().read(segment.token + here.begin - at.begin, here.size(), inputs + here.begin - positions.begin);
    const index_t first = std::max(here.begin, at.end - segment.scored);
    if (first < here.end) {
      file_.tokens().read(segment.token + first - at.begin + 1, here.end - first, targets + first - positions.begin);
    }
  }
}

index_t ChoiceSequences::tokens(index_t sequence) const {
  const Segment& last = segments(sequence).back();
  return last.position + last.length;
}

void ChoiceSequences::document_starts(index_t sequence, std::span<std::int32_t> out) const {
  std::size_t at = 0;
  for (const Segment& segment : segments(sequence)) {
    std::fill_n(out.begin() + static_cast<std::ptrdiff_t>(at), segment.length, static_cast<std::int32_t>(at));
    at += static_cast<std::size_t>(segment.length);
  }
  for (; at < out.size(); ++at) out[at] = static_cast<std::int32_t>(at);
}

index_t ChoiceSequences::targets(index_t sequence) const {
  index_t sum = 0;
  for (const Segment& segment : segments(sequence)) sum += segment.scored;
  return sum;
}

double ChoiceSequences::filled() const {
  index_t sum = 0;
  for (const Segment& segment : segments_) sum += segment.length;
  return static_cast<double>(sum) / static_cast<double>(count() * length_);
}

}  // namespace nanotron::data
