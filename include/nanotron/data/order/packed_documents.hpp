#pragma once

// Packs whole documents into sequences of s positions (best-fit packing; Ding et al. 2024, "Fewer Truncations Improve
// Language Modeling", section 3). A document of n + 1 tokens takes n positions: every token but the last is an input,
// and the token after it is its target. Documents of more than s positions are split into pieces of s positions and a
// rest. Pieces are placed longest first, each in the fullest sequence in which it fits. Unused positions at the end of
// a sequence are empty, and each is a document of its own.

#include "nanotron/data/order/sequences.hpp"

namespace nanotron::data {

class PackedDocuments final : public Sequences {
 public:
  /// With validation_fraction f whole documents are the validation split. In a file of n tokens in P = min(256,
  /// documents) parts, a document with c tokens before it is held out if fewer than (f n / P) floor(c P / n) tokens are
  /// held out before it; the last document is if no other is. Stores 16 bytes per piece and 8 per sequence. Time
  /// O(N log N) for N pieces. Error(data_error) as for Documents (data/order/documents.hpp).
  PackedDocuments(const deck::DataConfig& data, const TokenFile& file, Split split);

  index_t count() const override { return static_cast<index_t>(begins_.size()) - 1; }
  void read(index_t sequence, const Range& positions, std::int32_t* inputs, std::int32_t* targets) const override;
  void document_starts(index_t sequence, std::span<std::int32_t> out) const override;
  index_t tokens(index_t sequence) const override;
  double filled() const override;

 private:
  struct Piece {
    index_t token;   // of its first input, in the file
    index_t length;  // in positions
  };
  std::span<const Piece> pieces_of(index_t sequence) const {
    return std::span(pieces_).subspan(
        begins_[static_cast<std::size_t>(sequence)],
        begins_[static_cast<std::size_t>(sequence) + 1] - begins_[static_cast<std::size_t>(sequence)]);
  }

  const TokenFile& file_;
  index_t length_;
  std::vector<Piece> pieces_;        // sequence by sequence
  std::vector<std::size_t> begins_;  // sequence i has pieces_[begins_[i] .. begins_[i + 1])
};

}  // namespace nanotron::data
