// The attention blocks of layers with multi-head latent attention.
#include <algorithm>

#include "attention_blocks.hpp"
#include "nanotron/base/types.hpp"
#include "nanotron/nn/attention/attention_core.hpp"
#include "nanotron/nn/attention/latent_attention.hpp"

namespace nanotron::model {
namespace {

const std::string prefix = "model/layers/self_attn/";

nn::LatentSizes latent_sizes(const deck::ModelConfig& m, const ParameterTable& table) {
  return {.query_rank = m.q_lora_rank,
          .key_value_rank = m.kv_lora_rank,
          .heads = {.heads = table.heads.query.size(),
                    .nope = m.qk_nope_head_dim,
                    .rope = m.qk_rope_head_dim,
                    .value = m.v_head_dim}};
}

template <class T>
class LatentBlocks final : public AttentionBlocks<T> {
 public:
  using M = master_t<T>;

  LatentBlocks(const TransformerSetup& setup, const ParameterTable& table, Arena& arena)
      : setup_(setup),
        sizes_(latent_sizes(setup.model, table)),
        tokens_(setup.sequences * setup.context().tokens().length()),
        compressed_(nn::make_tensor_parallel_region<T>(
            setup.tp_mode, {.tokens = tokens_, .width = sizes_.columns(), .tp_size = setup.tp->size()},
            {.chunks = setup.overlap.chunks}, *setup.tp, arena)) {}

  // It gathers compressed tokens instead.
  bool keeps_gathered_input() const override { return false; }

  void take_full(Arena& arena, MemoryKind kind, nn::AttentionActivations<T>& act) const override {
    const index_t rows = compressed_->rows(), columns = sizes_.columns();
    nn::CompressedActivations<T> c{arena.take<T>(kind, rows, columns), arena.take<T>(kind, rows, columns)};
    if (sizes_.query_rank > 0) c.query_rstd = arena.take<M>(kind, rows, 1);
    c.key_value_rstd = arena.take<M>(kind, rows, 1);
    act.compressed = std::make_shared<nn::CompressedActivations<T>>(c);
  }

  void take_forward(Arena& arena, nn::AttentionWorkspace<T>& work) const override {
    constexpr auto kind = MemoryKind::workspace;
    nn::CompressedWorkspace<T> w{arena.take<T>(kind, tokens_, sizes_.query_columns()),
                                 arena.take<T>(kind, tokens_, sizes_.key_value_columns()),
                                 arena.take<T>(kind, tokens_, sizes_.value_columns())};
    if (setup_.purpose == Purpose::inference) {
      const index_t cached = sizes_.heads.heads * sizes_.cached_columns();
      w.absorbed_query = arena.take<T>(kind, tokens_, cached);
      w.absorbed_out = arena.take<T>(kind, tokens_, cached);
      w.absorbed_tiles = arena.take<std::byte>(kind, static_cast<index_t>(absorbed_bytes(arena.processor())));
    }
    work.compressed = std::make_shared<nn::CompressedWorkspace<T>>(w);
  }

  void take_backward(Arena& arena, nn::AttentionWorkspace<T>& work) const override {
    nn::CompressedWorkspace<T> w = *work.compressed;
    w.gradient = arena.take<T>(MemoryKind::workspace, compressed_->rows(), sizes_.columns());
    work.compressed = std::make_shared<nn::CompressedWorkspace<T>>(w);
  }

  index_t sums(const LocalSizes& s, Processor processor) const override {
    const auto of = [&](index_t columns) {
      return kernels::rms_norm_workspace_size(processor, s.hidden_rows, columns,
                                              detail::orders_of(setup_).tokens.tokens);
    };
    return std::max(of(std::max<index_t>(sizes_.query_rank, 1)), of(sizes_.key_value_rank));
  }

  std::vector<LinearSizes> linears(const LocalSizes& s) const override {
    const index_t rank = sizes_.key_value_rank;
    std::vector<LinearSizes> linears{
        {s.hidden_rows, sizes_.columns(), s.hidden},
        {s.tokens, sizes_.query_columns(), sizes_.query_rank > 0 ? sizes_.query_rank : s.hidden},
        {s.tokens, sizes_.key_value_columns(), rank},
        {s.tokens, s.hidden, sizes_.value_columns()}};
    if (setup_.purpose == Purpose::inference)
      linears.insert(linears.end(), {{s.tokens, rank, sizes_.heads.nope}, {s.tokens, sizes_.heads.value, rank}});
    return linears;
  }

  nn::CacheColumns cache(const LocalSizes&) const override { return {.keys = sizes_.cached_columns()}; }

  std::unique_ptr<const nn::Attention<T>> make(const AttentionSource<T>& of) const override {
    const auto order = [&](index_t each) {
      return detail::over_tensor_shards(setup_, {{setup_.model.num_attention_heads, static_cast<int>(each)}});
    };
    const auto linear = [&](const char* name, index_t rows, const nn::LinearOrders& orders) {
      return nn::Linear<T>(
          detail::linear_weights(of.table, of.buffers, of.table[prefix + name + "/weight"], of.layer, rows), orders);
    };
    nn::LatentSizes sizes = sizes_;
    sizes.heads.interleaved = of.geometry.rotation.is_interleaved();
    const kernels::LatentHeads& h = sizes_.heads;
    const bool compresses = sizes_.query_rank > 0;
    nn::LatentParts<T> parts{
        .down = linear(compresses ? "q_a_proj" : "kv_a_proj_with_mqa", sizes_.columns(), {}),
        .query = linear(compresses ? "q_b_proj" : "q_proj", sizes_.query_columns(), {.out = order(h.width())}),
        .key_value = linear("kv_b_proj", sizes_.key_value_columns(), {.out = order(h.nope + h.value)}),
        .out = linear("o_proj", of.table[prefix + "o_proj/weight"].local_rows(),
                      {.in = order(h.value), .tokens = of.orders.attention_out.tokens}),
        .tokens = of.orders.qkv.tokens,
        .hidden_rows = of.orders.hidden_rows,
        .norm_segments = of.orders.tokens,
        .head_segments = of.orders.heads.heads,
        .compressed = compressed_.get()};
    if (compresses) parts.query_norm = detail::norm_weights(of.table, of.buffers, prefix + "q_a_layernorm/", of.layer);
    parts.key_value_norm = detail::norm_weights(of.table, of.buffers, prefix + "kv_a_layernorm/", of.layer);
    return std::make_unique<nn::LatentAttention<T>>(of.geometry, sizes, parts, of.core);
  }

 private:
  // Of generation: the longest chunk of queries and all of the cache.
  std::size_t absorbed_bytes(Processor processor) const {
    return kernels::attention_workspace_bytes<T>(nn::absorbed_shape({.batch = setup_.sequences,
                                                                     .query_length = setup_.length,
                                                                     .key_length = setup_.key_length,
                                                                     .query_heads = sizes_.heads.heads},
                                                                    sizes_),
                                                 processor);
  }

  TransformerSetup setup_;
  nn::LatentSizes sizes_;
  index_t tokens_;
  std::unique_ptr<nn::TensorParallelRegion<T>> compressed_;
};

}  // namespace

template <class T>
std::shared_ptr<const AttentionBlocks<T>> make_compressed_blocks(const TransformerSetup& setup,
                                                                 const ParameterTable& table, Arena& arena) {
  return std::make_shared<LatentBlocks<T>>(setup, table, arena);
}

#define NANOTRON_INSTANTIATE(T)                                                                         \
  template std::shared_ptr<const AttentionBlocks<T>> make_compressed_blocks<T>(const TransformerSetup&, \
                                                                               const ParameterTable&, Arena&);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::model
