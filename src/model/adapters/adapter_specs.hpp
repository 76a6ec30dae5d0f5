#pragma once

// The parameters of adapters of low rank (LoRA). They are a section of their own behind all others, a unit for each
// layer; what is before them is frozen. Names as PEFT's: model/layers/self_attn/q_proj/lora_A/weight. Private to the
// model layer.
//
// In a unit those whose gradients are partial sums over tensor-parallel ranks come first, and are summed at once. The A
// of the projections that one GEMM computes follow one another. With all adapters, each bar being a border of
// alignment:
//
//   A_q A_k A_v | A_gate A_up | B_o | B_down || B_q | B_k | B_v | B_gate | B_up | A_o | A_down
//
// A projection that is no target is left out.

#include <memory>

#include "model/parameters/table_builder.hpp"
#include "nanotron/model/layers/gemm_recipe.hpp"
#include "nanotron/nn/linear/linear.hpp"

namespace nanotron::model {

/// The orders of sums of the linear layers, and the group that adds in them; null: no order (nn::LoraSums).
struct AdapterOrders {
  nn::LinearOrders qkv{}, attention_out{}, gate_up{}, down{};
  comm::Group* tp = nullptr;
};

/// The GEMMs of frozen linear layers and their adapters (adapter_recipe.cpp). buffers' memory must outlive it.
template <class T>
std::unique_ptr<GemmRecipe<T>> make_adapter_recipe(const deck::LoraConfig& lora, const ParameterTable& table,
                                                   const nn::ParameterBuffers<T>& buffers, const AdapterOrders& orders);

}  // namespace nanotron::model

namespace nanotron::model::detail {

/// Adds the section and marks the others as frozen. layers: all of the model.
void add_adapters(TableBuilder& build, ParameterTable& table, const LayerNumbers& layers, const TableLayout& layout);

/// Adapted projections whose base weights are contiguous, and so are their A; numbers in table.specs.
struct AdapterGroup {
  std::vector<std::size_t> base, a, b;
  std::vector<Range> columns;  // of y, of each projection
};

/// The adapters of the GEMM whose base weights begin with `first` and have `rows` rows; empty without any.
AdapterGroup adapters_of(const ParameterTable& table, const nn::ParameterSpec& first, index_t rows);

}  // namespace nanotron::model::detail
