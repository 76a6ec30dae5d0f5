#pragma once

// Pairs of answers, as sequences: a token file whose documents 2i and 2i + 1 are pair i, a prompt with the chosen
// answer and the same prompt with the rejected one; /loss_mask is 1 for the tokens of answers.
// tools/nanotron_tools/pairs.py writes it.
//
//   prompt a b, chosen c d, rejected e; s = 6:    inputs  a b c a b .    targets  - c d - e -

#include <vector>

#include "nanotron/data/order/sequences.hpp"

namespace nanotron::data {

/// Sequence i is pair i, each answer a document of its own. A document of n + 1 tokens takes n positions: every token
/// but the last is an input. Stores 16 bytes per pair. Error(data_error) for a file without pairs, with damaged tables,
/// or with a pair that is longer than a sequence.
class PairSequences final : public Sequences {
 public:
  /// file must outlive this.
  PairSequences(const TokenFile& file, index_t length);

  index_t count() const override { return static_cast<index_t>(begins_.size()) / 2; }
  void read(index_t sequence, const Range& positions, std::int32_t* inputs, std::int32_t* targets) const override;
  void document_starts(index_t sequence, std::span<std::int32_t> out) const override;
  index_t tokens(index_t sequence) const override {
    return positions_of(2 * sequence) + positions_of(2 * sequence + 1);
  }
  double filled() const override;
  std::uint64_t content() const override;

 private:
  void check_documents(const std::vector<std::uint64_t>& lines) const;
  index_t end_of(index_t document) const {
    const auto next = static_cast<std::size_t>(document + 1);
    return next < begins_.size() ? static_cast<index_t>(begins_[next]) : file_.size();
  }
  index_t positions_of(index_t document) const {
    return end_of(document) - static_cast<index_t>(begins_[static_cast<std::size_t>(document)]) - 1;
  }

  const TokenFile& file_;
  index_t length_;
  std::vector<std::uint64_t> begins_;  // of the documents
};

}  // namespace nanotron::data
