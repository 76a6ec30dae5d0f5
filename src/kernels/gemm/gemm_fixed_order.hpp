#pragma once

// Products in a fixed order of k: what host/ and cuda/ share.

#include "kernels/gemm/gemm_backend.hpp"
#include "nanotron/base/error.hpp"

namespace nanotron::kernels::detail {

/// The order, or one shard of `depth` terms where the caller named none.
inline SumOrder order_or_whole(const SumOrder& order, index_t depth) {
  if (order.block_count == 0) return SumOrder({{depth, 1}}, 1, 1, 0);
  NANOTRON_REQUIRE(order.size() == depth && order.held < (1 << (TreeStack::depth - 1)),
                   "a sum over {} terms in an order for {}, {} shards", depth, order.size(), order.held);
  return order;
}

}  // namespace nanotron::kernels::detail
