#pragma once

// GEMM in a fixed order of k: what host/ and cuda/ share.

#include "kernels/gemm/gemm_backend.hpp"
#include "nanotron/base/error.hpp"

namespace nanotron::kernels::detail {

/// `order`, or one shard of `depth` terms if it is empty. Error (system_error) if it is not for `depth` terms.
inline SumOrder order_or_whole(const SumOrder& order, index_t depth) {
  if (order.block_count == 0) return SumOrder({{depth, 1}}, 1, 1, 0);
  NANOTRON_REQUIRE(order.size() == depth && order.shards_on_rank < (1 << (TreeStack::depth - 1)),
                   "a sum over {} terms in an order for {}, {} shards", depth, order.size(), order.shards_on_rank);
  return order;
}

// The functions of gemm_backend.hpp that a backend of this kind defines, for all types.
#define NANOTRON_INSTANTIATE_GEMM(T, C)                                                                        \
  template void multiply_in_order<T, C>(Device&, const GemmProblem&, const SumOrder&, const T*, const T*, C*); \
  template void multiply_batch_in_order<T, C>(Device&, const GemmProblem&, const T* const*, const T* const*,   \
                                              C* const*, index_t);
#define NANOTRON_INSTANTIATE_FIXED_ORDER NANOTRON_FOR_GEMM_TYPES(NANOTRON_INSTANTIATE_GEMM)

}  // namespace nanotron::kernels::detail
