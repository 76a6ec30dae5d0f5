#pragma once

// The feed-forward network of a decoder layer, dense (nn/mlp/mlp.hpp) or a mixture of experts (nn/moe/moe.hpp): from
// the normed rows n of the hidden states to y, the sum of the tensor-parallel ranks' parts.

#include "nanotron/nn/attention/token_batch.hpp"
#include "nanotron/nn/linear/hidden_states.hpp"
#include "nanotron/nn/moe/moe_memory.hpp"
#include "nanotron/nn/pass_traffic.hpp"

namespace nanotron::nn {

/// Of a dense network, or of the expert that all tokens go to.
template <class T>
struct MlpActivations {
  Matrix<T> gate_up;  // (tokens, gate | up, or up); overwritten by its gradient in backward
  Matrix<T> hidden;   // (tokens, local width)
};

/// What a layer keeps from forward to backward.
template <class T>
struct FeedForwardActivations {
  MlpActivations<T> mlp;
  MoeActivations<T> moe;  // empty in a dense network
};

/// Shared by all layers, overwritten by each.
template <class T>
struct FeedForwardWorkspace {
  Matrix<T> dhidden;         // (tokens, local width)
  Vector<master_t<T>> sums;  // for fixed-order sums over tokens
  MoeWorkspace<T> moe;
};

template <class T>
class FeedForward {
 public:
  virtual ~FeedForward() = default;

  /// n -> y (rows of the hidden states, hidden), overwritten: there when its sum has been waited for and the bias been
  /// added. Collective over the tensor-parallel group and those that share experts or a sequence's router losses, as is
  /// all of backward.
  [[nodiscard]] virtual Running forward(Device& device, const TokenBatch& batch, HiddenStates<T>& states,
                                        const BlockInput<T>& n, const FeedForwardActivations<T>& act,
                                        const FeedForwardWorkspace<T>& work, Matrix<T> y) const = 0;

  virtual PassTraffic traffic(const HiddenStates<T>& states) const = 0;

  /// y += the output's bias, behind the sum.
  virtual void add_output_bias(Device&, const HiddenStates<T>&, Matrix<T>) const {}

  /// Fills `hidden` again from gate_up. No communication.
  virtual void recompute_hidden(Device& device, const FeedForwardActivations<T>& act) const = 0;

  /// dy (rows of the hidden states, hidden) -> the gradient of gate | up in its place. Returns dy of all tokens, see
  /// HiddenStates::gather_multiply. No weight gradient yet.
  virtual Matrix<const T> backward_inside(Device& device, HiddenStates<T>& states, Matrix<const T> dy,
                                          const FeedForwardActivations<T>& act,
                                          const FeedForwardWorkspace<T>& work) const = 0;

  /// Behind it: dn (rows of the hidden states, hidden), overwritten: there when its sum has been waited for.
  [[nodiscard]] virtual Running backward_input(Device& device, const TokenBatch& batch, HiddenStates<T>& states,
                                               const FeedForwardActivations<T>& act,
                                               const FeedForwardWorkspace<T>& work, Matrix<T> dn) const = 0;

  /// The weight gradients: of down projections from dy (tokens, hidden), behind backward_inside; of the others from n
  /// (tokens, hidden), behind backward_input.
  virtual void backward_output_weight(Device& device, Matrix<const T> dy, const FeedForwardActivations<T>& act,
                                      const FeedForwardWorkspace<T>& work) const = 0;
  virtual void backward_input_weight(Device& device, Matrix<const T> n, const FeedForwardActivations<T>& act,
                                     const FeedForwardWorkspace<T>& work) const = 0;

  /// Once, on memory that is zero: lets the libraries make what products of any number of rows need.
  virtual void prepare(Device&, const FeedForwardActivations<T>&, const FeedForwardWorkspace<T>&) const {}
};

}  // namespace nanotron::nn
