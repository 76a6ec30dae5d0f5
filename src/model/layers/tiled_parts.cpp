// Dense networks in tiles of tokens.

#include <algorithm>

#include "feed_forward_parts.hpp"
#include "nanotron/nn/mlp/tiled_mlp.hpp"

namespace nanotron::model {
namespace {

// No layer keeps activations: one tile's are in the workspace.
template <class T>
class TiledParts final : public FeedForwardParts<T> {
 public:
  // input: (rows, columns) of the inputs of all tokens that backward gathers.
  TiledParts(const DenseSize& size, index_t tile, index_t input_rows, index_t hidden)
      : FeedForwardParts<T>(size), size_(size), tile_(tile), input_rows_(input_rows), hidden_(hidden) {}

  void take_hidden(Arena&, MemoryKind, nn::FeedForwardActivations<T>&) const override {}
  void take_full(Arena&, MemoryKind, nn::FeedForwardActivations<T>&) const override {}
  void take_forward(Arena& arena, nn::FeedForwardWorkspace<T>& work) const override {
    work.tile.gate_up = arena.take<T>(MemoryKind::workspace, tile_, size_.gate_up);
    work.tile.hidden = arena.take<T>(MemoryKind::workspace, tile_, size_.width);
  }
  void take_backward(Arena& arena, nn::FeedForwardWorkspace<T>& work) const override {
    work.dhidden = arena.take<T>(MemoryKind::workspace, tile_, size_.width);
    work.tile.input = arena.take<T>(MemoryKind::workspace, input_rows_, hidden_);
  }
  std::unique_ptr<const nn::FeedForward<T>> make(const FeedForwardSource<T>& source) const override {
    return std::make_unique<nn::TiledMlp<T>>(
        detail::mlp_linears(source, source.orders, source.table.mlp("model/layers/mlp/"), source.gemms),
        source.recipe.activation(source.activation, source.table), tile_);
  }

 private:
  DenseSize size_;
  index_t tile_, input_rows_, hidden_;
};

}  // namespace

template <class T>
std::shared_ptr<const FeedForwardParts<T>> make_tiled_parts(const TransformerSetup& setup, const DenseSize& size) {
  const bool gathers = setup.tp_mode == deck::TpMode::reduce_scatter && setup.tp->size() > 1;
  return std::make_shared<TiledParts<T>>(size, std::min(setup.mlp_tile, size.tokens), gathers ? size.tokens : 0,
                                         setup.model.hidden_size);
}

#define NANOTRON_INSTANTIATE(T) \
  template std::shared_ptr<const FeedForwardParts<T>> make_tiled_parts<T>(const TransformerSetup&, const DenseSize&);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::model
