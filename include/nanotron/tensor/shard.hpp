#pragma once

// How a tensor is sharded over the ranks of a group.

#include <algorithm>

#include "nanotron/base/types.hpp"

namespace nanotron {

// How a global extent is sharded over the ranks of a group.

/// The half-open interval [begin, end) of a global extent.
struct Range {
  index_t begin = 0;
  index_t end = 0;
  NANOTRON_FUNCTION constexpr index_t size() const { return end - begin; }
  NANOTRON_FUNCTION constexpr bool contains(index_t i) const { return i >= begin && i < end; }
  friend constexpr bool operator==(const Range&, const Range&) = default;
};

/// Balanced contiguous shards: the first (extent mod parts) shards hold one element more.
/// The shards are disjoint and cover [0, extent) in order; a shard may be empty when extent < parts.
constexpr Range shard_range(index_t extent, int parts, int index) {
  const index_t base = extent / parts;
  const index_t extra = extent % parts;
  const index_t begin = index * base + std::min<index_t>(index, extra);
  return {begin, begin + base + (index < extra ? 1 : 0)};
}

// Where the elements of a row-major shard are in their logical tensor: what random numbers depend on, so that they do
// not depend on the grid.

/// Element i of the shard is element first + (i / columns) logical_columns + i % columns of the logical tensor.
struct LogicalIndex {
  index_t columns = 1, logical_columns = 1;
  index_t first = 0;

  NANOTRON_FUNCTION index_t operator()(index_t i) const {
    if (columns == logical_columns) return first + i;
    return first + i / columns * logical_columns + i % columns;
  }
};

}  // namespace nanotron
