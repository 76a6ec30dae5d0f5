#pragma once

// How the attention blocks of a rank's layers are made, and the memory that they share. AttentionBlocks itself:
// attention with grouped queries. Private to the model layer.

#include "feed_forward_parts.hpp"
#include "nanotron/nn/attention/attention.hpp"
#include "sum_orders.hpp"

namespace nanotron::model {

/// What a layer's attention is made from. core: see nn/attention/attention_core.hpp.
template <class T>
struct AttentionSource {
  const ParameterTable& table;
  const nn::ParameterBuffers<T>& buffers;
  index_t layer;
  const nn::AttentionGeometry<T>& geometry;
  nn::AttentionCore<T>& core;
  const detail::SumOrders& orders;
  const LayerGemms<T>& gemms;
  comm::Group& tp;
};

template <class T>
class AttentionBlocks {
 public:
  virtual ~AttentionBlocks() = default;

  /// Whether forward saves all tokens of n with parallel%tp_gathered_inputs = 'keep', see nn::BlockInput.
  virtual bool keeps_gathered_input() const { return true; }

  // What the arena (planning or real) gives besides the members of nn::AttentionActivations and nn::AttentionWorkspace:
  // what backward reads; workspaces of forward and of backward, which all layers share.

  virtual void take_full(Arena&, MemoryKind, nn::AttentionActivations<T>&) const {}
  virtual void take_forward(Arena&, nn::AttentionWorkspace<T>&) const {}
  virtual void take_backward(Arena&, nn::AttentionWorkspace<T>&) const {}

  /// Elements of nn::AttentionWorkspace::sums.
  virtual index_t sums(const LocalSizes& sizes, Processor processor) const;
  /// The linear layers.
  virtual std::vector<LinearSizes> linears(const LocalSizes& sizes) const;
  /// Columns of nn::KeyValueCache.
  virtual nn::CacheColumns cache(const LocalSizes& sizes) const;
  /// source.core and the blocks must outlive it.
  virtual std::unique_ptr<const nn::Attention<T>> make(const AttentionSource<T>& source) const;
};

/// Those of setup.model. Takes what all layers share from the arena.
template <class T>
std::shared_ptr<const AttentionBlocks<T>> make_attention_blocks(const TransformerSetup& setup,
                                                                const ParameterTable& table, Arena& arena);

/// Those of attention from compressed tokens.
template <class T>
std::shared_ptr<const AttentionBlocks<T>> make_compressed_blocks(const TransformerSetup& setup,
                                                                 const ParameterTable& table, Arena& arena);

namespace detail {

// The 1-D parameters `prefix`weight and `prefix`bias, where there are any. A weight that begins at 0 is added to 1.
template <class T>
nn::NormWeights<T> norm_weights(const ParameterTable& table, const nn::ParameterBuffers<T>& buffers,
                                const std::string& prefix, index_t layer) {
  nn::NormWeights<T> w;
  if (table.contains(prefix + "weight")) {
    const nn::ParameterSpec& weight = table[prefix + "weight"];
    w.weight = {buffers.vector(weight, layer, weight.local_rows()), weight.initial == nn::Initial::zeros};
    w.gradient = buffers.vector_gradient(weight, layer, weight.local_rows());
  }
  if (table.contains(prefix + "bias")) {
    const nn::ParameterSpec& bias = table[prefix + "bias"];
    w.bias = buffers.vector(bias, layer, bias.rows);
    w.bias_gradient = buffers.vector_gradient(bias, layer, bias.rows);
  }
  return w;
}

}  // namespace detail
}  // namespace nanotron::model
