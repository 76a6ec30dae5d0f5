#pragma once

// Rows of the parts of a tensor and where they lie in its file.

#include <array>
#include <vector>

#include "nanotron/io/block_exchange.hpp"

namespace nanotron::io {

/// A part as (outer, inner, columns), leading dimensions of extent 1 where it has fewer; positions and sizes in bytes.
struct FileRows {
  index_t outer = 1, inner = 1;
  std::int64_t begin = 0, outer_pitch = 0, inner_pitch = 0;  // in the file
  std::int64_t bytes = 0;                                    // of a row

  FileRows(const PlacedTensor& placed, const StatePart& part);
  std::int64_t position(index_t i, index_t j) const { return begin + i * outer_pitch + j * inner_pitch; }
};

/// The parts of this rank's parts that have bytes in [from, to) of the file, by whole rows; of 1-D tensors by elements.
std::vector<StatePart> parts_within(const PlacedTensor& placed, std::int64_t from, std::int64_t to);

}  // namespace nanotron::io
