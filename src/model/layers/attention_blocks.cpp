#include "attention_blocks.hpp"

#include <algorithm>

#include "nanotron/base/types.hpp"
#include "nanotron/deck/attention_sizes.hpp"
#include "nanotron/nn/attention/grouped_query_attention.hpp"

namespace nanotron::model {
namespace {

// Ranks that share a key head have parts of its gradient: the one that owns the head counts it. Or each has the whole
// gradient, and counts its shards of the head.
template <class T>
nn::QueryKeyColumns columns_of_norm(const AttentionSource<T>& of, index_t query, const nn::ParameterSpec& key) {
  const nn::HeadShard& heads = of.geometry.heads;
  const index_t head_dim = of.geometry.head_dim, all = of.geometry.key_columns();
  const SumOrder of_query = of.orders.qkv.out.of_block(0), of_key = of.orders.qkv.out.of_block(1);
  if (!key.gradient_is_partial) return {query, key.rows, of_query, of_key, of_key, {0, all}};
  const index_t first = (heads.owned_key.begin - heads.key.begin) * head_dim, count = heads.owned_key.size() * head_dim;
  const SumOrder owned(
      {{.extent = count, .before = static_cast<int>(first), .after = static_cast<int>(all - first - count)}}, 1, 1, 0);
  return {query, key.rows, of_query, owned, SumOrder({{all, 1}}, 1, 1, 0), {first, first + count}};
}

// Null where the model has none.
template <class T>
std::shared_ptr<const nn::QueryKeyNorm<T>> make_query_key_norm(const AttentionSource<T>& of) {
  const std::string query = "model/layers/self_attn/q_norm/", key = "model/layers/self_attn/k_norm/";
  if (!of.table.contains(query + "weight")) return nullptr;
  const nn::NormWeights<T> of_query = detail::norm_weights(of.table, of.buffers, query, of.layer),
                           of_key = detail::norm_weights(of.table, of.buffers, key, of.layer);
  const nn::ParameterSpec& weight = of.table[query + "weight"];
  const bool is_sharded = weight.partition == nn::Partition::column_parallel;
  nn::QueryKeyColumns columns;
  if (is_sharded) columns = columns_of_norm(of, weight.rows, of.table[key + "weight"]);
  return nn::make_query_key_norm<T>(
      of_query, of_key, columns, of.tp,
      {detail::gradient_group(of.table, weight, of.tp), of.orders.heads, of.orders.norm_heads});
}

}  // namespace

template <class T>
index_t AttentionBlocks<T>::sums(const LocalSizes& s, Processor processor) const {
  return std::max(nn::head_norm_sums(processor, s.tokens, s.query_heads, s.query / s.query_heads,
                                     {nullptr, {s.token_segments, s.head_segments}, s.norm_heads}),
                  kernels::bias_workspace_size(processor, s.tokens, s.query + 2 * s.key, s.token_segments));
}

template <class T>
std::vector<LinearSizes> AttentionBlocks<T>::linears(const LocalSizes& s) const {
  return {{s.tokens, s.query + 2 * s.key, s.hidden}, {s.tokens, s.hidden, s.query}};
}

template <class T>
nn::CacheColumns AttentionBlocks<T>::cache(const LocalSizes& s) const {
  return {.keys = s.key, .values = s.key};
}

template <class T>
std::unique_ptr<const nn::Attention<T>> AttentionBlocks<T>::make(const AttentionSource<T>& of) const {
  const std::string prefix = "model/layers/self_attn/";
  const nn::ParameterSpec &query = of.table[prefix + "q_proj/weight"], &out = of.table[prefix + "o_proj/weight"];
  const auto linear = [&](const nn::ParameterSpec& first, index_t rows, const nn::LinearOrders& orders,
                          const std::shared_ptr<const nn::LinearGemms<T>>& gemms) {
    return nn::Linear<T>(detail::linear_weights(of.table, of.buffers, first, of.layer, rows), orders, gemms);
  };
  return std::make_unique<nn::GroupedQueryAttention<T>>(
      of.geometry, linear(query, of.geometry.qkv_columns(), of.orders.qkv, of.gemms.qkv),
      linear(out, out.local_rows(), of.orders.attention_out, of.gemms.attention_out), make_query_key_norm(of), of.core);
}

template <class T>
std::shared_ptr<const AttentionBlocks<T>> make_attention_blocks(const TransformerSetup& setup,
                                                                const ParameterTable& table, Arena& arena) {
  if (deck::attention_sizes(setup.model).is_compressed) return make_compressed_blocks<T>(setup, table, arena);
  return std::make_shared<AttentionBlocks<T>>();
}

#define NANOTRON_INSTANTIATE(T)                                                                        \
  template class AttentionBlocks<T>;                                                                   \
  template std::shared_ptr<const AttentionBlocks<T>> make_attention_blocks<T>(const TransformerSetup&, \
                                                                              const ParameterTable&, Arena&);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::model
