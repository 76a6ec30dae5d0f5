#pragma once

// Whole documents in sequences of S positions (best-fit packing; Ding et al. 2024, "Fewer Truncations Improve Language
// Modeling", section 3). A document of n + 1 tokens takes n positions: every token but the last is an input, and what
// follows it in the document its target. Documents of more than S positions are cut into pieces of S and a rest;
// pieces go, the longest first, into the fullest sequence that has room. What is left over at the end of a sequence
// are positions without a target, each a document of its own.
//
// A batch of documents of any lengths is thus computed without padding them to the longest.

#include "nanotron/data/sequences.hpp"

namespace nanotron::data {

class PackedDocuments final : public Sequences {
 public:
  /// With validation_fraction f whole documents are the validation split: of P = min(256, documents) parts of a file of n
  /// tokens, a document with c tokens before it is held out while fewer than (f n / P) floor(c P / n) tokens are, and the
  /// last document if no other is. Takes 16 bytes a piece and 8 a sequence, and p log S operations for p pieces.
  /// Error(data_error) as data/documents.hpp.
  PackedDocuments(const deck::DataConfig& data, const TokenFile& file, Split split);

  index_t count() const override { return static_cast<index_t>(begins_.size()) - 1; }
  void read(index_t sequence, const Range& positions, std::int32_t* inputs, std::int32_t* targets) const override;
  void document_starts(index_t sequence, std::span<std::int32_t> out) const override;
  index_t targets(index_t sequence) const override;
  double filled() const override;

 private:
  struct Piece {
    index_t token;   // of the file, of its first input
    index_t length;  // positions
  };
  std::span<const Piece> pieces_of(index_t sequence) const {
    return std::span(pieces_).subspan(begins_[static_cast<std::size_t>(sequence)],
                                      begins_[static_cast<std::size_t>(sequence) + 1] - begins_[static_cast<std::size_t>(sequence)]);
  }

  const TokenFile& file_;
  index_t length_;
  std::vector<Piece> pieces_;        // those of a sequence one behind the other
  std::vector<std::size_t> begins_;  // of each sequence in pieces_, and the end
};

}  // namespace nanotron::data
