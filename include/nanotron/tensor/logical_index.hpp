#pragma once

// Where the elements of a row-major shard are in their logical tensor: what random numbers depend on, so that they do
// not depend on the grid.

#include "nanotron/base/types.hpp"

namespace nanotron {

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
