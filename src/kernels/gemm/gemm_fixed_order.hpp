#pragma once

// GEMM in a fixed order of k: what host/ and cuda/ share.

#include "kernels/gemm/gemm_backend.hpp"
#include "nanotron/base/error.hpp"

namespace nanotron::kernels::detail {

/// `order`, or one shard of `depth` terms if it is empty. Error (system_error) if it is not for `depth` terms.
inline SumOrder order_or_whole(const SumOrder& order, index_t depth) {
  if (order.block_count == 0) return SumOrder({{depth, 1}}, 1, 1, 0);
  NANOTRON_REQUIRE(order.size() == depth && order.held < (1 << (TreeStack::depth - 1)),
                   "a sum over {} terms in an order for {}, {} shards", depth, order.size(), order.held);
  return order;
}

}  // namespace nanotron::kernels::detail
