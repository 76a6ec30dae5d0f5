// Dense networks in tiles of tokens.

#include <algorithm>
#include <bit>

#include "feed_forward_parts.hpp"
#include "nanotron/nn/mlp/tiled_mlp.hpp"
#include "sum_orders.hpp"

namespace nanotron::model {
namespace {

// No layer keeps activations: one tile's are in the workspace.
template <class T>
class TiledParts final : public FeedForwardParts<T> {
 public:
  // input_rows: of the inputs of all tokens that backward gathers.
  TiledParts(const TransformerSetup& setup, const DenseSize& size, index_t input_rows)
      : FeedForwardParts<T>(size),
        size_(size),
        tile_(std::min(setup.mlp_tile, size.tokens)),
        input_rows_(input_rows),
        hidden_(setup.model.hidden_size),
        shards_(setup.context_shards > 1 ? detail::orders_of(setup).feed_forward.down.tokens : SumOrder()),
        biases_(setup.model.mlp_bias ? size.gate_up + hidden_ : 0) {}

  void take_hidden(Arena&, MemoryKind, nn::FeedForwardActivations<T>&) const override {}
  void take_full(Arena&, MemoryKind, nn::FeedForwardActivations<T>&) const override {}
  void take_forward(Arena& arena, nn::FeedForwardWorkspace<T>& work) const override {
    work.tile.gate_up = arena.take<T>(MemoryKind::workspace, tile_, size_.gate_up);
    work.tile.hidden = arena.take<T>(MemoryKind::workspace, tile_, size_.width);
  }
  void take_backward(Arena& arena, nn::FeedForwardWorkspace<T>& work) const override {
    work.dhidden = arena.take<T>(MemoryKind::workspace, tile_, size_.width);
    work.tile.input = arena.take<T>(MemoryKind::workspace, input_rows_, hidden_);
    const auto held = static_cast<unsigned>(shards_.shards_on_rank);
    work.tile.gradients = arena.take<master_t<T>>(MemoryKind::workspace, shards_.shards > 1 ? std::bit_width(held) : 0,
                                                  (size_.gate_up + size_.width) * hidden_ + biases_);
  }
  std::unique_ptr<const nn::FeedForward<T>> make(const FeedForwardSource<T>& source) const override {
    return std::make_unique<nn::TiledMlp<T>>(
        detail::mlp_linears(source, source.orders, source.table.mlp("model/layers/mlp/"), source.gemms),
        source.recipe.activation(source.activation, source.table), tile_, shards_);
  }

 private:
  DenseSize size_;
  index_t tile_, input_rows_, hidden_;
  SumOrder shards_;  // of the tokens, where they are fixed
  index_t biases_;   // elements
};

}  // namespace

template <class T>
std::shared_ptr<const FeedForwardParts<T>> make_tiled_parts(const TransformerSetup& setup, const DenseSize& size) {
  const bool gathers = setup.tp_mode == deck::TpMode::reduce_scatter && setup.tp->size() > 1;
  return std::make_shared<TiledParts<T>>(setup, size, gathers ? size.tokens : 0);
}

#define NANOTRON_INSTANTIATE(T) \
  template std::shared_ptr<const FeedForwardParts<T>> make_tiled_parts<T>(const TransformerSetup&, const DenseSize&);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::model
