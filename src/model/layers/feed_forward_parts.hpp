#pragma once

// Makes the feed-forward network of a layer, and what all mixtures of experts share. Private to the model layer.

#include "nanotron/model/layers/transformer.hpp"
#include "nanotron/nn/linear/linear.hpp"
#include "nanotron/nn/moe/moe.hpp"

namespace nanotron::model::detail {

/// Weights of one GEMM: contiguous projections, `first` being the first of them, with `rows` rows in total. Their
/// biases, if the table has any, are contiguous too.
template <class T>
nn::LinearWeights<T> linear_weights(const ParameterTable& table, const nn::ParameterBuffers<T>& buffers,
                                    const nn::ParameterSpec& first, index_t layer, index_t rows) {
  nn::LinearWeights<T> w{.weight = buffers.weight(first, layer, rows),
                         .gradient = buffers.weight_gradient(first, layer, rows)};
  const std::string bias = first.name.substr(0, first.name.rfind('/')) + "/bias";
  if (table.contains(bias)) {
    w.bias = buffers.vector(table[bias], layer, rows);
    w.bias_gradient = buffers.vector_gradient(table[bias], layer, rows);
  }
  return w;
}

/// Number of sums that nn::Moe keeps per layer.
index_t router_sums_of(const deck::MoeConfig& moe);

/// Takes what it needs from the arena (planning or real); nothing for a dense model.
template <class T>
std::unique_ptr<nn::MoeParts<T>> make_moe_parts(const TransformerSetup& setup, const ParameterTable& table,
                                                index_t tokens, const nn::MoeOrders& orders, Device& device,
                                                Arena& arena);

/// Orders of sums: gate_up and down for the dense network or the shared expert, the others for routed experts.
struct FeedForwardOrders {
  nn::LinearOrders gate_up, down, expert_gate_up, expert_down;
};

/// act and parts must outlive the result. sums: those of this layer, see nn::Moe.
template <class T>
std::unique_ptr<const nn::FeedForward<T>> make_feed_forward(const nn::Activation<T>& act, const ParameterTable& table,
                                                            const nn::ParameterBuffers<T>& buffers, index_t layer,
                                                            const FeedForwardOrders& orders, const LayerGemms<T>& gemms,
                                                            const nn::MoeParts<T>& parts, Vector<double> sums);

}  // namespace nanotron::model::detail
