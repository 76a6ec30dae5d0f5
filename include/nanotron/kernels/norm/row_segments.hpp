#pragma once

#include "nanotron/base/types.hpp"

namespace nanotron::kernels {

/// Weight gradients are summed over tokens x heads equal segments. The segments are added in a tree
/// (tensor/sum_order.hpp): first over the heads, then over the tokens.
struct RowSegments {
  index_t tokens = 1;
  index_t heads = 1;
};

}  // namespace nanotron::kernels
