#pragma once

// The gated feed-forward block of Llama, its width cut over the tensor-parallel group:
//
//   gate | up = n Wgu^T      h = silu(gate) up      y = h Wd^T, a part of the sum over the group
//
// n, y and their gradients are rows of the residual stream, which gathers and sums them. Functions that are given it
// are collective over the tensor-parallel group.

#include "nanotron/nn/mlp/feed_forward.hpp"

namespace nanotron::nn {

template <class T>
class Mlp final : public FeedForward<T> {
 public:
  using M = master_t<T>;

  Mlp(const Linear<T>& gate_up, const Linear<T>& down)
      : gate_up_(gate_up), down_(down) {}

  [[nodiscard]] Running forward(Device& device, const TokenBatch& batch, ResidualStream<T>& stream, const BlockInput<T>& n,
                                const FeedForwardActivations<T>& act, const FeedForwardWorkspace<T>& work,
                                Matrix<T> y) const override;
  PassTraffic traffic(const ResidualStream<T>& stream) const override {
    const comm::StepTraffic ends = stream.gather_traffic() + stream.sum_traffic();
    return {ends, ends};
  }
  void recompute_hidden(Device& device, const FeedForwardActivations<T>& act) const override;
  Matrix<const T> backward_inside(Device& device, ResidualStream<T>& stream, Matrix<const T> dy,
                                  const FeedForwardActivations<T>& act,
                                  const FeedForwardWorkspace<T>& work) const override;
  [[nodiscard]] Running backward_input(Device& device, const TokenBatch& batch, ResidualStream<T>& stream,
                                       const FeedForwardActivations<T>& act, const FeedForwardWorkspace<T>& work,
                                       Matrix<T> dn) const override;
  void backward_output_weight(Device& device, Matrix<const T> dy, const FeedForwardActivations<T>& act) const override;
  void backward_input_weight(Device& device, Matrix<const T> n, const FeedForwardActivations<T>& act) const override;

 private:
  Linear<T> gate_up_;
  Linear<T> down_;
};

}  // namespace nanotron::nn
