#include "feed_forward_parts.hpp"

#include "nanotron/nn/mlp/mlp.hpp"

namespace nanotron::model {

template <class T>
std::unique_ptr<const nn::FeedForward<T>> FeedForwardParts<T>::make(const FeedForwardSource<T>& source) const {
  const nn::MlpLinears<T> linears = detail::mlp_linears(source, source.table.mlp("model/layers/mlp/"), source.gemms);
  return std::make_unique<nn::Mlp<T>>(linears.gate_up, linears.down,
                                      source.recipe.activation(source.activation, source.table));
}

template <class T>
std::shared_ptr<const FeedForwardParts<T>> make_feed_forward_parts(const TransformerSetup& setup,
                                                                   const ParameterTable& table, index_t tokens,
                                                                   Device& device, Arena& arena) {
  if (deck::feed_forward_sizes(setup.model).is_routed())
    return make_routed_parts<T>(setup, table, tokens, device, arena);
  return std::make_shared<FeedForwardParts<T>>();
}

#define NANOTRON_INSTANTIATE(T)                                                   \
  template class FeedForwardParts<T>;                                             \
  template std::shared_ptr<const FeedForwardParts<T>> make_feed_forward_parts<T>( \
      const TransformerSetup&, const ParameterTable&, index_t, Device&, Arena&);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::model
