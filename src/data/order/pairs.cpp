#include "nanotron/data/order/pairs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "nanotron/base/error.hpp"

namespace nanotron::data {
namespace {

constexpr const char* remedy = "write the file with tools/nanotron_pairs.py";

[[noreturn]] void refuse(const TokenFile& file, const std::string& what, const std::string& expected,
                         const std::string& found, const std::string& change = remedy) {
  fail(ExitCode::data_error,
       {.what = what, .expected = expected, .found = found, .where = file.path(), .change = change});
}

// The line of each pair in the texts that the file was made of.
std::vector<std::uint64_t> lines_of(const TokenFile& file) {
  const StoredArray lines = file.open_column("pairs");
  if (!lines.exists() || lines.size() == 0) {
    refuse(file, "this is not a file of pairs (data%sequences = 'pairs')", "the dataset /pairs",
           lines.exists() ? "an empty one" : "none");
  }
  if (!file.loss_mask().exists())
    refuse(file, "the file of pairs does not say which tokens are answers", "/loss_mask, 1 for the tokens of answers",
           "no /loss_mask");
  return lines.read_all();
}

}  // namespace

PairSequences::PairSequences(const TokenFile& file, index_t length)
    : file_(file), length_(length), begins_(file.read_documents()) {
  check_documents(lines_of(file));
}

void PairSequences::check_documents(const std::vector<std::uint64_t>& lines) const {
  if (begins_.size() != 2 * lines.size()) {
    refuse(file_, "/documents and /pairs do not fit", fmt::format("{} documents, two for each pair", 2 * lines.size()),
           fmt::format("{}", begins_.size()));
  }
  const auto size = static_cast<std::uint64_t>(file_.size());
  if (begins_.front() != 0 || begins_.back() > size || !std::ranges::is_sorted(begins_)) {
    refuse(file_, "/documents is damaged", fmt::format("increasing offsets from 0 to at most {}", size),
           fmt::format("{} to {}", begins_.front(), begins_.back()));
  }
  for (index_t pair = 0; pair < count(); ++pair) {
    const std::uint64_t line = lines[static_cast<std::size_t>(pair)];
    const index_t chosen = positions_of(2 * pair), rejected = positions_of(2 * pair + 1);
    if (std::min(chosen, rejected) < 1) {
      refuse(file_, fmt::format("the pair of line {} has an answer without a token before it", line),
             "at least two tokens of prompt and answer", fmt::format("{} and {}", chosen + 1, rejected + 1));
    }
    if (chosen + rejected <= length_) continue;
    refuse(file_, fmt::format("the pair of line {} is longer than a sequence", line),
           fmt::format("at most {} positions (data%sequence_length)", length_),
           fmt::format("{}: prompt and answer of {} and of {} tokens, each without the last", chosen + rejected,
                       chosen + 1, rejected + 1),
           fmt::format("a longer data%sequence_length, or nanotron-pairs --max-length {}", length_ / 2 + 1));
  }
}

void PairSequences::read(index_t sequence, const Range& positions, std::int32_t* inputs, std::int32_t* targets) const {
  index_t at = 0;
  for (index_t document = 2 * sequence; document < 2 * sequence + 2; ++document) {
    const index_t end_of_document = at + positions_of(document);
    const index_t begin = std::max(at, positions.begin), end = std::min(end_of_document, positions.end);
    if (begin < end) {
      const index_t first = static_cast<index_t>(begins_[static_cast<std::size_t>(document)]) + begin - at;
      const index_t out = begin - positions.begin;
      file_.read_with_next(first, end - begin, inputs + out, targets + out);
      file_.loss_mask().apply(first + 1, {targets + out, static_cast<std::size_t>(end - begin)});
    }
    at = end_of_document;
  }
  const index_t left = positions.end - std::max(at, positions.begin);
  if (left <= 0) return;
  std::fill_n(inputs + positions.size() - left, left, 0);
  std::fill_n(targets + positions.size() - left, left, no_target);
}

void PairSequences::document_starts(index_t sequence, std::span<std::int32_t> out) const {
  const auto second = static_cast<std::size_t>(positions_of(2 * sequence)),
             end = static_cast<std::size_t>(tokens(sequence));
  std::ranges::fill(out.first(second), 0);
  std::ranges::fill(out.subspan(second, end - second), static_cast<std::int32_t>(second));
  std::iota(out.begin() + static_cast<std::ptrdiff_t>(end), out.end(), static_cast<std::int32_t>(end));
}

double PairSequences::filled() const {
  return static_cast<double>(file_.size() - static_cast<index_t>(begins_.size())) /
         static_cast<double>(count() * length_);
}

std::uint64_t PairSequences::content() const {
  return file_.hashes().exist() ? file_.hashes().content : content_of(file_);
}

}  // namespace nanotron::data
