#pragma once

// Rows of the parts of a tensor and where they lie in its file.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "nanotron/io/blocks/block_exchange.hpp"

namespace nanotron::io {

/// A part as (outer, inner, columns), leading dimensions of extent 1 where it has fewer; positions and sizes in bytes.
struct FileRows {
  index_t outer = 1, inner = 1;
  std::int64_t begin = 0, outer_pitch = 0, inner_pitch = 0;  // in the file
  std::int64_t bytes = 0;                                    // of a row

  FileRows(const PlacedTensor& placed, const StatePart& part);
  std::int64_t position(index_t i, index_t j) const { return begin + i * outer_pitch + j * inner_pitch; }
};

/// f(position in the file, memory, bytes) for the rows of a part; for whole layers where they are packed in both.
template <class F>
void for_each_run(const PlacedTensor& placed, const StatePart& part, const F& f) {
  const FileRows rows(placed, part);
  const std::size_t n = part.extent.size();
  const auto element = static_cast<std::int64_t>(size_of(placed.type));
  const index_t outer_stride = n == 3 ? part.stride[0] : 0, inner_stride = n >= 2 ? part.stride[n - 2] : 0;
  auto* const data = static_cast<std::byte*>(part.data);
  const bool packed = rows.bytes == rows.inner_pitch && inner_stride * element == rows.bytes;
  for (index_t i = 0; i < rows.outer; ++i) {
    std::byte* const layer = data + i * outer_stride * element;
    if (packed) {
      f(rows.position(i, 0), layer, rows.inner * rows.bytes);
      continue;
    }
    for (index_t j = 0; j < rows.inner; ++j) f(rows.position(i, j), layer + j * inner_stride * element, rows.bytes);
  }
}

/// The parts of this rank's parts that have bytes in [from, to) of the file, by whole rows; of 1-D tensors by elements.
std::vector<StatePart> parts_within(const PlacedTensor& placed, std::int64_t from, std::int64_t to);

}  // namespace nanotron::io
