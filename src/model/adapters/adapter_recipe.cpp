// Frozen linear layers with adapters (nn/linear/lora_linear.hpp).

#include <algorithm>
#include <vector>

#include "adapter_specs.hpp"
#include "nanotron/base/types.hpp"
#include "nanotron/nn/linear/lora_linear.hpp"

namespace nanotron::model {
namespace {

template <class T>
class AdapterRecipe final : public GemmRecipe<T> {
 public:
  AdapterRecipe(const deck::LoraConfig& lora, const ParameterTable& table, const nn::ParameterBuffers<T>& buffers,
                const AdapterOrders& orders)
      : lora_(lora), table_(table), buffers_(buffers), orders_(orders) {}

  void take_workspace(Arena& arena, const LocalSizes& sizes, const ActivationSetup& setup) override;
  std::size_t gemm_workspace_bytes(const LocalSizes& sizes, Processor processor) const override;
  LayerGemms<T> gemms(index_t layer) const override;

 private:
  std::shared_ptr<const nn::LinearGemms<T>> gemms_of(const nn::ParameterSpec& first, index_t rows, index_t layer,
                                                     const nn::LinearOrders& orders) const;

  deck::LoraConfig lora_;
  ParameterTable table_;
  nn::ParameterBuffers<T> buffers_;
  AdapterOrders orders_;
  nn::LoraWorkspace<T> work_{};
};

// The first weight of each GEMM of a layer, and its rows on this rank.
struct FirstWeight {
  const nn::ParameterSpec& spec;
  index_t rows;
};

struct LinearsOfLayer {
  FirstWeight qkv, attention_out, gate_up, down;
};

LinearsOfLayer linears_of(const ParameterTable& table) {
  const auto spec = [&](const char* name) -> const nn::ParameterSpec& {
    return table[std::string("model/layers/self_attn/") + name + "/weight"];
  };
  const nn::ParameterSpec &query = spec("q_proj"), &out = spec("o_proj");
  const MlpSpecs mlp = table.mlp("model/layers/mlp/");
  return {{query, query.local_rows() + 2 * spec("k_proj").local_rows()},
          {out, out.local_rows()},
          {mlp.first, mlp.first_rows},
          {mlp.down, mlp.down.local_rows()}};
}

template <class T>
void AdapterRecipe<T>::take_workspace(Arena& arena, const LocalSizes& sizes, const ActivationSetup&) {
  const LinearsOfLayer of = linears_of(table_);
  std::size_t outputs = 0;
  index_t widest = 0;
  for (const FirstWeight& w : {of.qkv, of.attention_out, of.gate_up, of.down}) {
    const detail::AdapterGroup group = detail::adapters_of(table_, w.spec, w.rows);
    outputs = std::max(outputs, group.a.size());
    for (const Range& columns : group.columns) widest = std::max(widest, columns.size());
  }
  const index_t elements = sizes.tokens * static_cast<index_t>(outputs) * lora_.rank;
  work_.inner = arena.take<T>(MemoryKind::workspace, elements);
  work_.gradient = arena.take<T>(MemoryKind::workspace, elements);
  work_.summed = arena.take<T>(MemoryKind::workspace, orders_.tp == nullptr ? 0 : elements);
  const bool packs = std::is_same_v<T, float> && arena.processor() == Processor::cpu;
  work_.columns = arena.take<T>(MemoryKind::workspace, packs ? sizes.tokens * widest : 0);
}

template <class T>
std::size_t AdapterRecipe<T>::gemm_workspace_bytes(const LocalSizes& s, Processor processor) const {
  const index_t inner = 3 * lora_.rank, widest = std::max({s.hidden, s.query, s.gate_up, s.intermediate});
  const GemmMode mode = orders_.tp == nullptr ? GemmMode::library : GemmMode::fixed_order;
  const auto bytes = [&](index_t m, index_t n, index_t k) {
    return kernels::gemm_workspace_bytes<T>(mode, processor, m, n, k);
  };
  return std::max({bytes(s.tokens, inner, widest), bytes(s.tokens, widest, inner), bytes(inner, widest, s.tokens),
                   bytes(widest, inner, s.tokens)});
}

template <class T>
std::shared_ptr<const nn::LinearGemms<T>> AdapterRecipe<T>::gemms_of(const nn::ParameterSpec& first, index_t rows,
                                                                     index_t layer,
                                                                     const nn::LinearOrders& orders) const {
  const detail::AdapterGroup group = detail::adapters_of(table_, first, rows);
  if (group.a.empty()) return nullptr;
  const nn::ParameterSpec& a = table_.specs[group.a.front()];
  const index_t inner = static_cast<index_t>(group.a.size()) * lora_.rank;
  nn::LoraWeights<T> w{.a = buffers_.weight(a, layer, inner),
                       .a_gradient = buffers_.weight_gradient(a, layer, inner),
                       .scale = lora_.alpha / static_cast<double>(lora_.rank)};
  for (std::size_t i = 0; i < group.b.size(); ++i) {
    const nn::ParameterSpec& b = table_.specs[group.b[i]];
    const auto block = static_cast<int>(group.base[i] - static_cast<std::size_t>(&first - table_.specs.data()));
    w.outputs.push_back({group.columns[i], buffers_.weight(b, layer, b.local_rows()),
                         buffers_.weight_gradient(b, layer, b.local_rows()), orders.out.of_block(block)});
  }
  const bool by_rows = first.partition == nn::Partition::row_parallel;
  return std::make_shared<nn::LoraLinear<T>>(
      std::move(w), work_,
      nn::LoraSums{orders.in, orders.tokens, by_rows ? orders_.tp : nullptr, by_rows ? nullptr : orders_.tp});
}

template <class T>
LayerGemms<T> AdapterRecipe<T>::gemms(index_t layer) const {
  const LinearsOfLayer of = linears_of(table_);
  const auto make = [&](const FirstWeight& w, const nn::LinearOrders& orders) {
    return gemms_of(w.spec, w.rows, layer, orders);
  };
  return {make(of.qkv, orders_.qkv), make(of.attention_out, orders_.attention_out), make(of.gate_up, orders_.gate_up),
          make(of.down, orders_.down)};
}

}  // namespace

template <class T>
std::unique_ptr<GemmRecipe<T>> make_adapter_recipe(const deck::LoraConfig& lora, const ParameterTable& table,
                                                   const nn::ParameterBuffers<T>& buffers,
                                                   const AdapterOrders& orders) {
  return std::make_unique<AdapterRecipe<T>>(lora, table, buffers, orders);
}

#define NANOTRON_INSTANTIATE(T)                                                                               \
  template std::unique_ptr<GemmRecipe<T>> make_adapter_recipe(const deck::LoraConfig&, const ParameterTable&, \
                                                              const nn::ParameterBuffers<T>&, const AdapterOrders&);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::model
