#pragma once

// Best-fit packing of pieces into bins.

#include <cstddef>
#include <map>
#include <vector>

#include "nanotron/base/types.hpp"

namespace nanotron::data {

/// Each piece goes into the bin with the least space in which it fits; of several, the one last added to; else into a
/// new one. Time O(log N) for each of N pieces.
class BestFit {
 public:
  explicit BestFit(index_t capacity) : capacity_(capacity) {}

  /// The bin, from 0, of the next piece; 1 <= length <= capacity.
  std::size_t place(index_t length);
  std::size_t bins() const { return bins_; }

 private:
  index_t capacity_;
  std::size_t bins_ = 0;
  std::map<index_t, std::vector<std::size_t>> with_room_;  // bins by their space
};

}  // namespace nanotron::data
