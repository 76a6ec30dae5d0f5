#pragma once

// The dense feed-forward block, its width sharded over the tensor-parallel group. Gated as in Llama, or as in GPT-2:
//
//   gate | up = n Wgu^T (+ b)      h = silu(gate) up
//   up = n Wu^T (+ b)              h = gelu(up)
//   y = h Wd^T, summed over the group (+ bd, once, after the sum)
//
// n, y and their gradients are rows of the hidden states; HiddenStates gathers and reduces them. Functions that take a
// non-const HiddenStates are collective over the tensor-parallel group.

#include "nanotron/nn/mlp/feed_forward.hpp"
#include "nanotron/nn/mlp/hidden_act.hpp"

namespace nanotron::nn {

template <class T>
class Mlp final : public FeedForward<T> {
 public:
  using M = master_t<T>;

  /// gate_up: gate and up fused, gate first, or only up, as act expects.
  Mlp(const Linear<T>& gate_up, const Linear<T>& down, const HiddenAct<T>& act)
      : gate_up_(gate_up), down_(down), act_(&act) {}

  [[nodiscard]] Running forward(Device& device, const TokenBatch& batch, HiddenStates<T>& states,
                                const BlockInput<T>& n, const FeedForwardActivations<T>& act,
                                const FeedForwardWorkspace<T>& work, Matrix<T> y) const override;
  PassTraffic traffic(const HiddenStates<T>& states) const override {
    const comm::StepTraffic ends = states.gather_traffic() + states.sum_traffic();
    return {ends, ends};
  }
  void add_output_bias(Device& device, const HiddenStates<T>& states, Matrix<T> y) const override {
    down_.add_bias(device, states.token_rows(y));
  }
  void compute_hidden(Device& device, const FeedForwardActivations<T>& act) const override;
  Matrix<const T> backward_inside(Device& device, HiddenStates<T>& states, Matrix<const T> dy,
                                  const FeedForwardActivations<T>& act,
                                  const FeedForwardWorkspace<T>& work) const override;
  [[nodiscard]] Running backward_input(Device& device, const TokenBatch& batch, HiddenStates<T>& states,
                                       const FeedForwardActivations<T>& act, const FeedForwardWorkspace<T>& work,
                                       Matrix<T> dn) const override;
  void backward_output_weight(Device& device, Matrix<const T> dy, const FeedForwardActivations<T>& act,
                              const FeedForwardWorkspace<T>& work) const override;
  void backward_input_weight(Device& device, Matrix<const T> n, const FeedForwardActivations<T>& act,
                             const FeedForwardWorkspace<T>& work) const override;

 private:
  Linear<T> gate_up_;
  Linear<T> down_;
  const HiddenAct<T>* act_;
};

}  // namespace nanotron::nn
