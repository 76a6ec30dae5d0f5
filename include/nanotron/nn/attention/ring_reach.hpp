#pragma once

// How far the keys of each part of a ring go, where documents do not attend to each other: a block of keys that no
// query of another part reads is not sent at all (data%length_buckets). All ranks know the documents of all positions,
// so all find the same.

#include <cstdint>
#include <span>
#include <vector>

#include "nanotron/tensor/sequence_layout.hpp"

namespace nanotron::nn {

class RingReach {
 public:
  /// layout: of the parts. At first every block goes to all parts.
  explicit RingReach(const SequenceLayout& layout);

  /// starts (sequences, length), on the host: the position where the document of each position begins.
  void find(std::span<const std::int32_t> starts);

  /// The ranks after its own that the block of a part goes to, one after the other.
  int hops(int part) const { return hops_[static_cast<std::size_t>(part)]; }
  /// Whether a query of this piece (0 or 1) of a part may read a key before position key_end.
  bool meets(int part, int piece, index_t key_end) const { return earliest(part, piece) < key_end; }

 private:
  index_t earliest(int part, int piece) const { return earliest_[static_cast<std::size_t>(2 * part + piece)]; }
  void find_hops();

  SequenceLayout layout_;
  std::vector<index_t> earliest_;  // key that a query of each piece reads
  std::vector<int> hops_;
};

}  // namespace nanotron::nn
