#include "sum_orders.hpp"

#include <algorithm>

namespace nanotron::model::detail {

SumOrder over_tensor_shards(const TransformerSetup& s, std::initializer_list<SumOrder::Block> blocks) {
  return SumOrder(blocks, std::max(s.tensor_shards, s.tp->size()), s.tp->size(), s.tp->rank());
}

namespace {

// Neighbours of tp, then of cp, have neighbouring tokens.
SumOrder over_hidden_rows(const TransformerSetup& s) {
  if (s.norm_shards <= 1) return {};
  const int neighbours = s.tp_mode == deck::TpMode::reduce_scatter ? s.tp->size() : 1;
  const int rank = s.cp->rank() * neighbours + (neighbours > 1 ? s.tp->rank() : 0);
  return SumOrder({{s.length, 1}}, s.norm_shards, s.cp->size() * neighbours, rank);
}

// Features of queries and of keys. A shard has whole groups of heads; or, with more shards than key heads, some query
// heads and as large a part of the keys that they read, of which the rank stores whole heads.
std::pair<SumOrder::Block, SumOrder::Block> head_features(const TransformerSetup& s, int shards) {
  const deck::ModelConfig& m = s.model;
  const index_t keys = m.num_key_value_heads;
  const auto head_dim = static_cast<int>(m.head_dim), group = static_cast<int>(m.num_attention_heads / keys);
  if (shards <= keys) return {{keys, group * head_dim}, {keys, head_dim}};
  const nn::HeadShard heads = nn::shard_heads(m.num_attention_heads, keys, shards, s.tp->size(), s.tp->rank());
  const SumOrder::Block queries{m.num_attention_heads, head_dim};
  const index_t before = heads.query.begin * head_dim / group - heads.key.begin * head_dim,
                after = heads.key.end * head_dim - heads.query.end * head_dim / group;
  return {queries,
          {.extent = queries.extent,
           .width = head_dim,
           .per = group,
           .before = static_cast<int>(before),
           .after = static_cast<int>(after)}};
}

}  // namespace

SumOrders orders_of(const TransformerSetup& s) {
  const deck::ModelConfig& m = s.model;
  const int tensor = std::max(s.tensor_shards, s.tp->size()), context = std::max(s.context_shards, s.cp->size());
  const auto over_tp = [&](std::initializer_list<SumOrder::Block> blocks) { return over_tensor_shards(s, blocks); };
  const int streams = s.cp->size() * (s.tp_mode == deck::TpMode::reduce_scatter ? s.tp->size() : 1);
  const auto [queries, keys] = head_features(s, tensor);
  const SumOrder::Block features{m.intermediate_size, 1}, shared{deck::feed_forward_sizes(m).shared_width.size, 1};
  const auto gate_up = m.is_gated() ? over_tp({features, features}) : over_tp({features});
  const SumOrder sequence({{s.length, 1}}, context, s.cp->size(), s.cp->rank());
  SumOrders o{.qkv = {.out = over_tp({queries, keys, keys})},
              .attention_out = {.in = over_tp({queries})},
              .head = {.out = over_tp({{m.vocab_size, 1}})},
              .feed_forward = {.gate_up = {.out = gate_up}, .down = {.in = over_tp({features})}},
              .shared = {.gate_up = {.out = over_tp({shared, shared})}, .down = {.in = over_tp({shared})}},
              .sequence = sequence,
              .hidden_rows = over_hidden_rows(s),
              .tokens = {.tokens = std::max(s.norm_shards, streams) / streams},
              .heads = {.tokens = context / s.cp->size(), .heads = tensor / s.tp->size()},
              .norm_heads = s.tensor_shards > 0 && m.num_key_value_heads % tensor != 0
                                ? nn::HeadCounts{m.num_attention_heads, m.num_key_value_heads}
                                : nn::HeadCounts{}};
  if (context > 1) {
    for (nn::LinearOrders* linear : {&o.qkv, &o.attention_out, &o.feed_forward.gate_up, &o.feed_forward.down,
                                     &o.shared.gate_up, &o.shared.down, &o.head}) {
      linear->tokens = sequence;
    }
  }
  return o;
}

}  // namespace nanotron::model::detail
