#include "nanotron/data/order/packed_documents.hpp"

#include <algorithm>
#include <utility>

#include "nanotron/data/order/best_fit.hpp"
#include "nanotron/data/order/documents.hpp"

namespace nanotron::data {
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

  std::vector<Piece> pieces;
  for (const Range& d : documents) {
    for (index_t at = d.begin; at + 1 < d.end; at += length_) pieces.push_back({at, std::min(length_, d.end - 1 - at)});
  }
  std::ranges::sort(pieces, [](const Piece& a, const Piece& b) {
    return std::pair(b.length, a.token) < std::pair(a.length, b.token);  // longest first, equal ones in file order
  });

  BestFit sequences(length_);
  std::vector<std::size_t> sequence_of, used;
  for (const Piece& piece : pieces) {
    sequence_of.push_back(sequences.place(piece.length));
    used.resize(sequences.bins());
    ++used[sequence_of.back()];
  }

  begins_.push_back(0);
  for (const std::size_t count : used) begins_.push_back(begins_.back() + count);
  pieces_.resize(pieces.size());
  std::vector<std::size_t> next(begins_.begin(), begins_.end() - 1);
  for (std::size_t i = 0; i < pieces.size(); ++i) pieces_[next[sequence_of[i]]++] = pieces[i];
}

void PackedDocuments::read(index_t sequence, const Range& positions, std::int32_t* inputs,
                           std::int32_t* targets) const {
  index_t at = 0;
  for (const Piece& piece : pieces_of(sequence)) {
    const index_t begin = std::max(at, positions.begin), end = std::min(at + piece.length, positions.end);
    if (begin < end) {
      const index_t first = piece.token + begin - at, out = begin - positions.begin;
      file_.read_with_next(first, end - begin, inputs + out, targets + out);
      file_.loss_mask().apply(first + 1, {targets + out, static_cast<std::size_t>(end - begin)});
    }
    at += piece.length;
  }
  const index_t left = positions.end - std::max(at, positions.begin);
  if (left <= 0) return;
  std::fill_n(inputs + positions.size() - left, left, 0);
  std::fill_n(targets + positions.size() - left, left, no_target);
}

void PackedDocuments::document_starts(index_t sequence, std::span<std::int32_t> out) const {
  std::size_t at = 0;
  for (const Piece& piece : pieces_of(sequence)) {
    std::fill_n(out.begin() + static_cast<std::ptrdiff_t>(at), piece.length, static_cast<std::int32_t>(at));
    at += static_cast<std::size_t>(piece.length);
  }
  for (; at < out.size(); ++at) out[at] = static_cast<std::int32_t>(at);
}

index_t PackedDocuments::tokens(index_t sequence) const {
  index_t sum = 0;
  for (const Piece& piece : pieces_of(sequence)) sum += piece.length;
  return sum;
}

double PackedDocuments::filled() const {
  index_t sum = 0;
  for (const Piece& piece : pieces_) sum += piece.length;
  return count() == 0 ? 0.0 : static_cast<double>(sum) / static_cast<double>(count() * length_);
}

}  // namespace nanotron::data
