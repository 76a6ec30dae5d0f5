#pragma once

// The dense feed-forward block, its width sharded over the tensor-parallel group. Gated as in Llama, or as in GPT-2:
//
//   gate | up = n Wgu^T (+ b)      h = f(gate, up), as silu(gate) up
//   up = n Wu^T (+ b)              h = f(up), as gelu(up)
//   y = h Wd^T, summed over the group (+ bd, once, after the sum)
//
// n, y and their gradients are rows of the hidden states; TensorParallelRegion gathers and reduces them. Functions that
// take a non-const TensorParallelRegion are collective over the tensor-parallel group.

#include "nanotron/nn/mlp/activation.hpp"
#include "nanotron/nn/mlp/feed_forward.hpp"

namespace nanotron::nn {

template <class T>
class Mlp final : public FeedForward<T> {
 public:
  using M = master_t<T>;

  /// gate_up: gate and up fused, gate first, or only up, as act expects.
  Mlp(const Linear<T>& gate_up, const Linear<T>& down, std::shared_ptr<const Activation<T>> act)
      : gate_up_(gate_up), down_(down), act_(std::move(act)) {}

  void forward_to_last_gemm(Device& device, const TokenBatch& batch, TensorParallelRegion<T>& region,
                            const BlockInput<T>& n, const FeedForwardActivations<T>& act,
                            const FeedForwardWorkspace<T>& work) const override;
  bool adds() const override { return down_.bias().extent(0) == 0; }
  [[nodiscard]] Pending forward_output(Device& device, const TokenBatch& batch, TensorParallelRegion<T>& region,
                                       const BlockInput<T>&, const FeedForwardActivations<T>& act,
                                       const FeedForwardWorkspace<T>& work, Matrix<const T> addend,
                                       Matrix<T> y) const override;
  PassTraffic traffic(const TensorParallelRegion<T>& region) const override {
    const comm::StepTraffic gather = region.gather_traffic(), sum = region.sum_traffic();
    const index_t tokens = region.chunks().back().end;
    const GemmTraffic first = gate_up_.traffic(tokens), last = down_.traffic(tokens);
    return {.forward = gather,
            .backward = gather + sum + act_->gradient_traffic() + first.backward_input,
            .output = sum + last.forward,
            .weights = first.backward_weight + last.backward_weight};
  }
  void add_output_bias(Device& device, const TensorParallelRegion<T>& region, Matrix<T> y) const override {
    down_.add_bias(device, region.token_rows(y));
  }
  void compute_hidden(Device& device, const FeedForwardActivations<T>& act) const override;
  Matrix<const T> backward_inside(Device& device, TensorParallelRegion<T>& region, Matrix<const T> dy,
                                  const FeedForwardActivations<T>& act,
                                  const FeedForwardWorkspace<T>& work) const override;
  [[nodiscard]] Pending backward_input(Device& device, const TokenBatch& batch, TensorParallelRegion<T>& region,
                                       const FeedForwardActivations<T>& act, const FeedForwardWorkspace<T>& work,
                                       Matrix<T> dn) const override;
  void backward_output_weight(Device& device, Matrix<const T> dy, const FeedForwardActivations<T>& act,
                              const FeedForwardWorkspace<T>& work) const override;
  void backward_input_weight(Device& device, Matrix<const T> n, const FeedForwardActivations<T>& act,
                             const FeedForwardWorkspace<T>& work) const override;

 private:
  Linear<T> gate_up_;
  Linear<T> down_;
  std::shared_ptr<const Activation<T>> act_;
};

}  // namespace nanotron::nn
