#pragma once

#include "nanotron/base/types.hpp"

namespace nanotron::kernels {

/// Into how many equal parts tokens and heads are cut for the sums of weight gradients: parts are added in a tree
/// (tensor/sum_order.hpp), those of heads inside those of tokens.
struct RowSegments {
  index_t tokens = 1;
  index_t heads = 1;
};

}  // namespace nanotron::kernels
