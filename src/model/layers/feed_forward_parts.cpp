#include "feed_forward_parts.hpp"

#include "nanotron/deck/layer_kinds.hpp"
#include "nanotron/nn/mlp/mlp.hpp"

namespace nanotron::model {

template <class T>
void FeedForwardParts<T>::take_hidden(Arena& arena, MemoryKind kind, nn::FeedForwardActivations<T>& act) const {
  act.mlp.hidden = arena.take<T>(kind, size_.tokens, size_.width);
}

template <class T>
void FeedForwardParts<T>::take_full(Arena& arena, MemoryKind kind, nn::FeedForwardActivations<T>& act) const {
  act.mlp.gate_up = arena.take<T>(kind, size_.tokens, size_.gate_up);
}

template <class T>
void FeedForwardParts<T>::take_backward(Arena& arena, nn::FeedForwardWorkspace<T>& work) const {
  work.dhidden = arena.take<T>(MemoryKind::workspace, size_.tokens, size_.width);
}

template <class T>
std::unique_ptr<const nn::FeedForward<T>> FeedForwardParts<T>::make(const FeedForwardSource<T>& source) const {
  const nn::MlpLinears<T> linears =
      detail::mlp_linears(source, source.orders, source.table.mlp("model/layers/mlp/"), source.gemms);
  return std::make_unique<nn::Mlp<T>>(linears.gate_up, linears.down,
                                      source.recipe.activation(source.activation, source.table));
}

template <class T>
std::shared_ptr<const LayerNetworks<T>> make_layer_networks(const TransformerSetup& setup, const ParameterTable& table,
                                                            index_t tokens, Device& device, Arena& arena) {
  const deck::LayerKinds of_model(setup.model);
  std::vector<std::shared_ptr<const FeedForwardParts<T>>> kinds;
  std::vector<std::size_t> of_layers(table.layer_numbers.size());
  for (const bool is_routed : {false, true}) {
    const auto is_of_kind = [&](index_t number) { return of_model[number].is_routed == is_routed; };
    if (std::ranges::none_of(table.layer_numbers, is_of_kind)) continue;
    for (std::size_t l = 0; l < of_layers.size(); ++l) {
      if (is_of_kind(table.layer_numbers[l])) of_layers[l] = kinds.size();
    }
    const index_t width = table.intermediate.size();
    const DenseSize dense{tokens, width, (setup.model.is_gated() ? 2 : 1) * width};
    kinds.push_back(is_routed            ? make_routed_parts<T>(setup, table, tokens, device, arena)
                    : setup.mlp_tile > 0 ? make_tiled_parts<T>(setup, dense)
                                         : std::make_shared<FeedForwardParts<T>>(dense));
  }
  return std::make_shared<LayerNetworks<T>>(std::move(kinds), std::move(of_layers));
}

#define NANOTRON_INSTANTIATE(T)                                            \
  template class FeedForwardParts<T>;                                      \
  template std::shared_ptr<const LayerNetworks<T>> make_layer_networks<T>( \
      const TransformerSetup&, const ParameterTable&, index_t, Device&, Arena&);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::model
