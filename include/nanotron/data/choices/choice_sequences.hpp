#pragma once

// The choices of a ChoiceFile as sequences of s positions. A choice of n tokens takes n - 1 positions: every token but
// the last is an input; the positions whose next token is of the choice itself have it as their target, the others have
// none. If a choice has more than s + 1 tokens, the last s + 1 are used: its context is truncated on the left. Unused
// positions have no target and repeat the inputs of the sequence.
//
//   context a b c, choice d e, s = 8:    inputs  a b c d a b c d    targets  - - d e - - - -

#include <span>
#include <vector>

#include "nanotron/data/choices/choice_file.hpp"
#include "nanotron/data/order/sequences.hpp"

namespace nanotron::data {

enum class ChoicePacking {
  one,      // choice per sequence
  several,  // best fit, each a document of its own; needs a document mask
};

class ChoiceSequences final : public Sequences {
 public:
  /// file must outlive this. Error(data_error) for a choice of more than `length` tokens of its own.
  ChoiceSequences(const ChoiceFile& file, index_t length, ChoicePacking packing);

  /// Where a choice is.
  struct Segment {
    index_t choice = 0;
    index_t token = 0;     // of its first input, in /tokens
    index_t position = 0;  // of that input in the sequence
    index_t length = 0;    // in positions
    index_t scored = 0;    // the last `scored` positions have a target
    index_t first_target() const { return position + length - scored; }
  };
  /// In the order of their positions.
  std::span<const Segment> segments(index_t sequence) const;
  /// Positions of a sequence that have a target.
  index_t targets(index_t sequence) const;
  /// Number of choices whose context was truncated.
  index_t cut() const { return cut_; }

  index_t count() const override { return static_cast<index_t>(begins_.size()) - 1; }
  void read(index_t sequence, const Range& positions, std::int32_t* inputs, std::int32_t* targets) const override;
  void document_starts(index_t sequence, std::span<std::int32_t> out) const override;
  index_t tokens(index_t sequence) const override;
  double filled() const override;

 private:
  const ChoiceFile& file_;
  index_t length_;
  index_t cut_ = 0;
  std::vector<Segment> segments_;    // sequence by sequence
  std::vector<std::size_t> begins_;  // sequence i has segments_[begins_[i] .. begins_[i + 1])
};

}  // namespace nanotron::data
