#pragma once

// How the feed-forward networks of a rank's layers are made, and what they share. FeedForwardParts itself: a dense
// network. Several, to which a router sends the tokens: moe_parts.cpp. A model may have layers of both kinds. Private
// to the model layer.

#include <algorithm>
#include <utility>

#include "nanotron/model/layers/gemm_recipe.hpp"
#include "nanotron/model/layers/transformer.hpp"
#include "nanotron/nn/linear/linear.hpp"
#include "nanotron/nn/mlp/feed_forward.hpp"

namespace nanotron::model {

/// Orders of sums of a dense network, or of the one of a routed layer that processes all tokens.
struct FeedForwardOrders {
  nn::LinearOrders gate_up, down;
};

/// Of the gradients of the scalars of the activation between the two: sums over the columns and the tokens.
inline kernels::ScalarOrder activation_order(const FeedForwardOrders& orders) {
  return {.columns = orders.down.in, .token_segments = orders.down.tokens.shards_on_rank};
}

struct LinearSizes {
  index_t tokens = 0, out = 0, in = 0;
};

/// What a layer's network is made from. layer: its place among the layers here with a network of this kind. sums: of
/// this layer, FeedForwardParts::sums() of them.
template <class T>
struct FeedForwardSource {
  const ParameterTable& table;
  const nn::ParameterBuffers<T>& buffers;
  index_t layer;
  const FeedForwardOrders& orders;
  const LayerGemms<T>& gemms;
  const GemmRecipe<T>& recipe;
  const nn::ActivationSource<T>& activation;
  Vector<double> sums;
};

/// Of a dense network on this rank.
struct DenseSize {
  index_t tokens = 0, width = 0;
  index_t gate_up = 0;  // columns of the first GEMM
};

template <class T>
class FeedForwardParts {
 public:
  explicit FeedForwardParts(const DenseSize& size) : size_(size) {}
  virtual ~FeedForwardParts() = default;

  // What the arena (planning or real) gives: the hidden activations of a dense network (KeptOutputs::hidden); what else
  // is cheap to recompute; the rest; what weight gradients read of backward_inside; workspaces of forward and of
  // backward, which all layers share.

  virtual void take_hidden(Arena&, MemoryKind, nn::FeedForwardActivations<T>&) const;
  virtual void take_selective(Arena&, MemoryKind, nn::FeedForwardActivations<T>&) const {}
  virtual void take_full(Arena&, MemoryKind, nn::FeedForwardActivations<T>&) const;
  virtual void take_doutput(Arena&, MemoryKind, nn::FeedForwardActivations<T>&) const {}
  virtual void take_forward(Arena&, nn::FeedForwardWorkspace<T>&) const {}
  virtual void take_backward(Arena&, nn::FeedForwardWorkspace<T>&) const;
  /// Of micro-batches that are computed together, for all but the first: what is not shared with it.
  virtual void take_turn(Arena&, index_t, nn::FeedForwardWorkspace<T>&) const {}

  /// The linear layers besides gate_up and down, where the host knows their tokens.
  virtual std::vector<LinearSizes> linears() const { return {}; }
  /// Bytes of Device::gemm_workspace() that other GEMMs than those of linears() need.
  virtual std::size_t gemm_workspace_bytes() const { return 0; }
  /// Statistics of a layer, see Transformer::statistics.
  virtual index_t sums() const { return 0; }
  /// The parts must outlive it.
  virtual std::unique_ptr<const nn::FeedForward<T>> make(const FeedForwardSource<T>& source) const;

 private:
  DenseSize size_;
};

/// The parts of each layer stored here: one object per kind of network.
template <class T>
class LayerNetworks {
 public:
  using Parts = FeedForwardParts<T>;
  LayerNetworks(std::vector<std::shared_ptr<const Parts>> kinds, std::vector<std::size_t> of_layers)
      : kinds_(std::move(kinds)), of_layers_(std::move(of_layers)) {}

  const std::vector<std::shared_ptr<const Parts>>& kinds() const { return kinds_; }
  std::size_t kind_of(index_t layer) const { return of_layers_[static_cast<std::size_t>(layer)]; }
  const Parts& operator[](index_t layer) const { return *kinds_[kind_of(layer)]; }
  /// How many of the layers before it here have a network of the same kind.
  index_t place_in_kind(index_t layer) const {
    const auto end = of_layers_.begin() + layer;
    return std::count(of_layers_.begin(), end, *end);
  }
  /// The largest FeedForwardParts::sums().
  index_t sums() const {
    index_t sums = 0;
    for (const auto& kind : kinds_) sums = std::max(sums, kind->sums());
    return sums;
  }

 private:
  std::vector<std::shared_ptr<const Parts>> kinds_;
  std::vector<std::size_t> of_layers_;
};

/// Those of setup.model. tokens: of a micro-batch on this rank. Takes what all layers share from the arena.
template <class T>
std::shared_ptr<const LayerNetworks<T>> make_layer_networks(const TransformerSetup& setup, const ParameterTable& table,
                                                            index_t tokens, Device& device, Arena& arena);

/// Those of a model whose tokens are routed.
template <class T>
std::shared_ptr<const FeedForwardParts<T>> make_routed_parts(const TransformerSetup& setup, const ParameterTable& table,
                                                             index_t tokens, Device& device, Arena& arena);

/// Those of a dense network that is computed in tiles of tokens.
template <class T>
std::shared_ptr<const FeedForwardParts<T>> make_tiled_parts(const TransformerSetup& setup, const DenseSize& size);

namespace detail {

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
    if (table[bias].has_gradient) w.bias_gradient = buffers.vector_gradient(table[bias], layer, rows);
  }
  return w;
}

/// Whose ranks add their parts of the gradient of a replicated parameter, each a sum over heads or columns, in
/// backward: those of tp, where sums have a fixed order (tensor/sum_order.hpp). Null: PartialGradients adds them, or
/// nothing reads the gradient.
inline comm::Group* gradient_group(const ParameterTable& table, const nn::ParameterSpec& spec, comm::Group& tp) {
  return table.layout.tensor_shards > 0 && spec.has_gradient ? &tp : nullptr;
}

/// What the activation of a layer is made from.
template <class T>
nn::ActivationSource<T> activation_source(const deck::ModelConfig& model, const ParameterTable& table,
                                          const nn::ParameterBuffers<T>& buffers, const FeedForwardOrders& orders,
                                          index_t layer, comm::Group& tp) {
  nn::ActivationSource<T> source{.model = model, .order = activation_order(orders)};
  const std::string prefix = "model/layers/mlp/act_fn/";
  if (!table.contains(prefix + "alpha_p")) return source;
  const nn::ParameterSpec &a_p = table[prefix + "alpha_p"], &a_n = table[prefix + "alpha_n"];
  source.scalars = {buffers.vector(a_p, layer, 1), buffers.vector(a_n, layer, 1)};
  source.a_p_gradient = buffers.vector_gradient(a_p, layer, 1);
  source.a_n_gradient = buffers.vector_gradient(a_n, layer, 1);
  source.tp = gradient_group(table, a_p, tp);
  return source;
}

/// The two linear layers of the network with these parameters.
template <class T>
nn::MlpLinears<T> mlp_linears(const FeedForwardSource<T>& of, const FeedForwardOrders& orders, const MlpSpecs& specs,
                              const LayerGemms<T>& gemms) {
  const auto weights = [&](const nn::ParameterSpec& first, index_t rows) {
    return linear_weights(of.table, of.buffers, first, of.layer, rows);
  };
  return {nn::Linear<T>(weights(specs.first, specs.first_rows), orders.gate_up, gemms.gate_up),
          nn::Linear<T>(weights(specs.down, specs.down.local_rows()), orders.down, gemms.down)};
}

}  // namespace detail
}  // namespace nanotron::model
