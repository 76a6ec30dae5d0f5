#pragma once

// In which order a rank adds what, see tensor/sum_order.hpp. Private to the model layer.

#include "feed_forward.hpp"

namespace nanotron::model::detail {

/// Of all sums on this rank.
struct SumOrders {
  nn::LinearOrders qkv, attention_out, head;
  FeedForwardOrders feed_forward;
  nn::MoeOrders moe;
  kernels::RowSegments tokens, heads;
};
SumOrders orders_of(const TransformerSetup& setup);

}  // namespace nanotron::model::detail
