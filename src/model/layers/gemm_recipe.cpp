#include "nanotron/model/layers/gemm_recipe.hpp"

#include <type_traits>

#include "fp8_recipe.hpp"
#include "model/adapters/adapter_specs.hpp"
#include "sum_orders.hpp"

namespace nanotron::model {
namespace {

bool has_codes(const TransformerSetup& setup) { return setup.operands == ScalarType::fp8; }

// tensor_shards > 0: sums have a fixed order.
AdapterOrders adapter_orders(const TransformerSetup& setup) {
  if (setup.tensor_shards == 0) return {};
  const detail::SumOrders orders = detail::orders_of(setup);
  return {orders.qkv, orders.attention_out, orders.feed_forward.gate_up, orders.feed_forward.down, setup.tp};
}

}  // namespace

template <class T>
std::unique_ptr<GemmRecipe<T>> make_gemm_recipe(const TransformerSetup& setup, const ParameterTable& table,
                                                const nn::ParameterBuffers<T>& buffers, Arena& arena) {
  if (setup.lora.rank > 0) return make_adapter_recipe(setup.lora, table, buffers, adapter_orders(setup));
  if constexpr (std::is_same_v<T, bf16>) {
    if (has_codes(setup)) return std::make_unique<Fp8Recipe>(setup, table, buffers, arena);
  }
  return std::make_unique<GemmRecipe<T>>();
}

nn::ExpertCodeBytes expert_code_bytes(const TransformerSetup& setup, const nn::MoeSizes& sizes, Processor processor) {
  if (!has_codes(setup) || !setup.fp8_experts) return {};
  return nn::fp8_expert_bytes(sizes, setup.ep->size(), scaling_of_weights(setup), processor);
}

template <class T>
ComputeWeights compute_weights(const TransformerSetup& setup) {
  if (has_codes(setup) && !deck::feed_forward_sizes(setup.model).is_routed()) return ComputeWeights::codes;
  return std::is_same_v<T, master_t<T>> ? ComputeWeights::master : ComputeWeights::narrower;
}

#define NANOTRON_INSTANTIATE(T)                                                                            \
  template std::unique_ptr<GemmRecipe<T>> make_gemm_recipe(const TransformerSetup&, const ParameterTable&, \
                                                           const nn::ParameterBuffers<T>&, Arena&);        \
  template ComputeWeights compute_weights<T>(const TransformerSetup&);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::model
