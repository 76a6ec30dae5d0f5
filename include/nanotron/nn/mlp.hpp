#pragma once

// The gated feed-forward block of Llama, its width cut over the tensor-parallel group:
//
//   gate | up = n Wgu^T      h = silu(gate) up      y = h Wd^T, a part of the sum over the group

#include "nanotron/nn/linear.hpp"

namespace nanotron::nn {

template <class T>
struct MlpActivations {
  Matrix<T> gate_up;  // (tokens, gate | up); overwritten by its gradient in backward
  Matrix<T> hidden;   // (tokens, local width)
};

template <class T>
class Mlp {
 public:
  using M = master_t<T>;

  Mlp(const Linear<T>& gate_up, const Linear<T>& down)
      : gate_up_(gate_up), down_(down) {}

  /// n (tokens, hidden) -> this rank's part of y (tokens, hidden), overwritten.
  void forward(Device& device, Matrix<const T> n, const MlpActivations<T>& act, Matrix<T> y) const;

  /// Fills act.hidden again from act.gate_up.
  void recompute_hidden(Device& device, const MlpActivations<T>& act) const;

  /// dy (tokens, hidden) -> this rank's part of dn (tokens, hidden), overwritten. dhidden (tokens, local width)
  /// is scratch. No weight gradient yet.
  void backward_input(Device& device, Matrix<const T> dy, const MlpActivations<T>& act, Matrix<T> dhidden,
                      Matrix<T> dn) const;

  /// The weight gradients: of the down projection from dy (tokens, hidden), at any time; of gate and up from n
  /// (tokens, hidden), behind backward_input.
  void backward_output_weight(Device& device, Matrix<const T> dy, const MlpActivations<T>& act) const;
  void backward_input_weight(Device& device, Matrix<const T> n, const MlpActivations<T>& act) const;

 private:
  Linear<T> gate_up_;
  Linear<T> down_;
};

}  // namespace nanotron::nn
