#pragma once

// The gated feed-forward block of Llama, its width cut over the tensor-parallel group:
//
//   gate | up = n Wgu^T      h = silu(gate) up      y = h Wd^T, a part of the sum over the group
//
// n, y and their gradients are rows of the residual stream, which gathers and sums them. Functions that are given it
// are collective over the tensor-parallel group.

#include "nanotron/nn/residual_stream.hpp"

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

  /// n -> y (rows of the stream, hidden), overwritten: there when its sum has been waited for.
  [[nodiscard]] Running forward(Device& device, ResidualStream<T>& stream, const BlockInput<T>& n,
                                const MlpActivations<T>& act, Matrix<T> y) const;

  /// Fills act.hidden again from act.gate_up.
  void recompute_hidden(Device& device, const MlpActivations<T>& act) const;

  /// dy (rows of the stream, hidden) -> the gradient of gate | up in its place. dhidden (tokens, local width) is
  /// scratch. Returns dy of all tokens, see ResidualStream::gather_multiply. No weight gradient yet.
  Matrix<const T> backward_inside(Device& device, ResidualStream<T>& stream, Matrix<const T> dy,
                                  const MlpActivations<T>& act, Matrix<T> dhidden) const;

  /// Behind it: dn (rows of the stream, hidden), overwritten: there when its sum has been waited for.
  [[nodiscard]] Running backward_input(Device& device, ResidualStream<T>& stream, const MlpActivations<T>& act,
                                       Matrix<T> dn) const;

  /// The weight gradients: of the down projection from dy (tokens, hidden), at any time; of gate and up from n
  /// (tokens, hidden), behind backward_inside.
  void backward_output_weight(Device& device, Matrix<const T> dy, const MlpActivations<T>& act) const;
  void backward_input_weight(Device& device, Matrix<const T> n, const MlpActivations<T>& act) const;

 private:
  Linear<T> gate_up_;
  Linear<T> down_;
};

}  // namespace nanotron::nn
