#pragma once

// The feed-forward network of a decoder layer, dense (nn/mlp/mlp.hpp) or a mixture of experts (nn/moe/moe.hpp): from
// the normed rows n of the hidden states to y, summed over the tensor-parallel group.

#include <memory>

#include "nanotron/nn/attention/token_batch.hpp"
#include "nanotron/nn/linear/tensor_parallel_region.hpp"
#include "nanotron/nn/pass_traffic.hpp"

namespace nanotron::nn {

/// Activations of a dense network.
template <class T>
struct MlpActivations {
  Matrix<T> gate_up;                 // (tokens, gate | up, or up); overwritten by its gradient in backward
  Matrix<T> hidden;                  // (tokens, local width)
  OperandCodes of_input, of_hidden;  // of n and of hidden
  Vector<float> gradient_maxima{};   // of the rows of the gradient of gate_up, if its GEMMs have a form of their own
};

/// The same network's linear layers.
template <class T>
struct MlpLinears {
  Linear<T> gate_up, down;
};

/// What a network with a router saves and overwrites in addition (nn/moe/moe_memory.hpp).
template <class T>
struct RoutedActivations;
template <class T>
struct RoutedWorkspace;

/// What a layer saves from forward for backward.
template <class T>
struct FeedForwardActivations {
  MlpActivations<T> mlp;
  std::shared_ptr<const RoutedActivations<T>> routed;  // null in a dense network
};

/// Of one tile of a network in tiles (nn/mlp/tiled_mlp.hpp). input: n of all tokens, where backward gathers it.
template <class T>
struct MlpTile {
  Matrix<T> gate_up{}, hidden{}, input{};
  Matrix<master_t<T>> gradients{};  // of a layer, a row for each level of the tree over shards of tokens
};

/// Shared by all layers; each overwrites it.
template <class T>
struct FeedForwardWorkspace {
  MlpTile<T> tile;
  Matrix<T> dhidden;                                 // (tokens, local width)
  Vector<master_t<T>> sums;                          // workspace of the gradients of biases and of the activation
  std::shared_ptr<const RoutedWorkspace<T>> routed;  // null in a dense network
};

enum class TileGradients { all, of_input };

template <class T>
class FeedForward {
 public:
  virtual ~FeedForward() = default;

  /// n (rows of the hidden states, hidden) -> act: all that backward reads. Collective over the tensor-parallel group
  /// and, with experts, the expert- and context-parallel groups; so are forward_output, backward_inside and
  /// backward_input.
  virtual void forward_to_last_gemm(Device& device, const TokenBatch& batch, TensorParallelRegion<T>& region,
                                    const BlockInput<T>& n, const FeedForwardActivations<T>& act,
                                    const FeedForwardWorkspace<T>& work) const = 0;
  /// Whether forward_output takes an addend: not if a bias would be added to the rounded sum.
  virtual bool adds() const = 0;
  /// After forward_to_last_gemm: y (rows of the hidden states, hidden), overwritten; complete after wait() and
  /// add_output_bias(). addend: see Attention::forward.
  [[nodiscard]] virtual Pending forward_output(Device& device, const TokenBatch& batch, TensorParallelRegion<T>& region,
                                               const BlockInput<T>& n, const FeedForwardActivations<T>& act,
                                               const FeedForwardWorkspace<T>& work, Matrix<const T> addend,
                                               Matrix<T> y) const = 0;

  /// The same in steps, each collective as above: rows that travel between ranks after a step may be in flight until
  /// the next one, beside other work. They equal forward_to_last_gemm and forward_output. A dense network does all in
  /// the first and the last step.
  virtual bool has_steps() const { return false; }  // rows travel
  virtual void forward_route(Device& device, const TokenBatch& batch, TensorParallelRegion<T>& region,
                             const BlockInput<T>& n, const FeedForwardActivations<T>& act,
                             const FeedForwardWorkspace<T>& work) const {
    forward_to_last_gemm(device, batch, region, n, act, work);
  }
  virtual void forward_dispatch(Device&, const FeedForwardActivations<T>&, const FeedForwardWorkspace<T>&) const {}
  virtual void forward_rows(Device&, const FeedForwardActivations<T>&, const FeedForwardWorkspace<T>&) const {}
  virtual void start_output(Device&, const FeedForwardActivations<T>&, const FeedForwardWorkspace<T>&) const {}
  [[nodiscard]] virtual Pending finish_output(Device& device, const TokenBatch& batch, TensorParallelRegion<T>& region,
                                              const BlockInput<T>& n, const FeedForwardActivations<T>& act,
                                              const FeedForwardWorkspace<T>& work, Matrix<const T> addend,
                                              Matrix<T> y) const {
    return forward_output(device, batch, region, n, act, work, addend, y);
  }

  /// output: of forward_output.
  virtual PassTraffic traffic(const TensorParallelRegion<T>& region) const = 0;

  /// y += the output's bias, after wait().
  virtual void add_output_bias(Device&, const TensorParallelRegion<T>&, Matrix<T>) const {}

  /// Recomputes `hidden` from gate_up. No communication.
  virtual void compute_hidden(Device& device, const FeedForwardActivations<T>& act) const = 0;

  /// dy (rows of the hidden states, hidden) -> the gradient of gate | up, which overwrites gate_up. Returns dy of all
  /// tokens, see TensorParallelRegion::all_gather_gemm. No weight gradients.
  virtual Matrix<const T> backward_inside(Device& device, TensorParallelRegion<T>& region, Matrix<const T> dy,
                                          const FeedForwardActivations<T>& act,
                                          const FeedForwardWorkspace<T>& work) const = 0;

  /// The same in two steps, as those of forward.
  virtual Matrix<const T> backward_start(Device& device, TensorParallelRegion<T>& region, Matrix<const T> dy,
                                         const FeedForwardActivations<T>& act,
                                         const FeedForwardWorkspace<T>& work) const {
    return backward_inside(device, region, dy, act, work);
  }
  virtual void backward_rows(Device&, const FeedForwardActivations<T>&, const FeedForwardWorkspace<T>&) const {}

  /// After backward_inside: dn (rows of the hidden states, hidden), overwritten. dn is complete after wait().
  [[nodiscard]] virtual Pending backward_input(Device& device, const TokenBatch& batch, TensorParallelRegion<T>& region,
                                               const FeedForwardActivations<T>& act,
                                               const FeedForwardWorkspace<T>& work, Matrix<T> dn) const = 0;

  /// Accumulate the weight gradients: of down projections from dy (tokens, hidden), after backward_start; of the
  /// others from n (tokens, hidden), after backward_input; of rows that were sent here after backward_inside.
  virtual void backward_output_weight(Device& device, Matrix<const T> dy, const FeedForwardActivations<T>& act,
                                      const FeedForwardWorkspace<T>& work) const = 0;
  virtual void backward_rows_weight(Device&, const FeedForwardActivations<T>&, const FeedForwardWorkspace<T>&) const {}
  virtual void backward_input_weight(Device& device, Matrix<const T> n, const FeedForwardActivations<T>& act,
                                     const FeedForwardWorkspace<T>& work) const = 0;

  /// Whether the two functions below replace those of backward after backward_start, which then returns dy itself.
  virtual bool is_in_tiles() const { return false; }
  /// From dy and n, collective as above: dn, complete after wait(), and perhaps the weight gradients; or these alone.
  [[nodiscard]] virtual Pending backward_tiles(Device&, TensorParallelRegion<T>&, Matrix<const T>, const BlockInput<T>&,
                                               const FeedForwardWorkspace<T>&, Matrix<T>, TileGradients) const {
    return Pending();
  }
  virtual void backward_tiles_weight(Device&, TensorParallelRegion<T>&, Matrix<const T>, const BlockInput<T>&,
                                     const FeedForwardWorkspace<T>&) const {}

  /// Call it once at start-up, on zeroed memory: runs the GEMMs whose number of rows depends on routing, so that the
  /// libraries create what they cache for each shape.
  virtual void prepare(Device&, const FeedForwardActivations<T>&, const FeedForwardWorkspace<T>&) const {}
};

}  // namespace nanotron::nn
