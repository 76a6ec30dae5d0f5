#pragma once

// The order of each sum on this rank, see tensor/sum_order.hpp. Private to the model layer.

#include "feed_forward_parts.hpp"

namespace nanotron::model::detail {

struct SumOrders {
  nn::LinearOrders qkv, attention_out, head;
  FeedForwardOrders feed_forward, shared;  // of dense layers; of the network of a routed layer for all tokens
  SumOrder sequence;                       // over the tokens of a sequence
  SumOrder hidden_rows;                    // over the tokens of the hidden states of a rank, with those of `tokens`
  kernels::RowSegments tokens, heads;
  nn::HeadCounts norm_heads{};  // HeadSum::apart: where shards of sums over features have different numbers of heads
};
SumOrders orders_of(const TransformerSetup& setup);

/// Of a sum over features or heads.
SumOrder over_tensor_shards(const TransformerSetup& setup, std::initializer_list<SumOrder::Block> blocks);

}  // namespace nanotron::model::detail
