#pragma once

// Packing of documents by classes of length (data%length_buckets). A sequence of s positions is halved again and again:
// 2^j blocks of s / 2^j positions, up to 64 and as long as s is even. A segment lies within one of the smallest blocks
// that can hold it. So a segment of at most s / (2 c) positions lies in one chunk of a ring of c ranks, where c is a
// power of two; and the packing does not depend on c.
//
// The class of a sequence is that of its longest segment. The samples of a step are taken in the order of their
// classes, long documents first, and otherwise in the order of the data. So micro-batches have sequences of one class,
// except one micro-batch for each further class. The order is a pure function of the samples of the step, and does not
// depend on the grid.

#include <cstddef>
#include <map>
#include <vector>

#include "nanotron/base/types.hpp"

namespace nanotron::data {

/// The class of a segment in sequences of `capacity` positions: how often they are halved for the smallest blocks that
/// can hold it.
int length_class(index_t length, index_t capacity);
inline constexpr int length_classes = 7;

class LengthBuckets {
 public:
  explicit LengthBuckets(index_t capacity) : capacity_(capacity) {}

  struct Place {
    std::size_t bin;   // from 0
    index_t position;  // of its first element in the bin
  };
  /// Of the next segment, 1 <= length <= capacity. Segments come longest first. It takes the beginning of the shortest
  /// free stretch within one of its blocks in which it fits, else of a new bin.
  Place place(index_t length);
  std::size_t bins() const { return bins_; }

 private:
  index_t block(int level) const { return capacity_ >> level; }
  void cut_at_blocks();
  void add(std::size_t bin, index_t begin, index_t end);

  index_t capacity_;
  int level_ = 0;  // of the blocks that no free stretch crosses
  std::size_t bins_ = 0;
  std::map<index_t, std::vector<Place>> free_;  // stretches by length
};

}  // namespace nanotron::data
