#pragma once

// The gated feed-forward block of Llama, its width cut over the tensor-parallel group:
//
//   gate | up = n Wgu^T      h = silu(gate) up      y = h Wd^T, summed over the group

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

  Mlp(const ColumnParallelLinear<T>& gate_up, const RowParallelLinear<T>& down)
      : gate_up_(gate_up), down_(down) {}

  /// n (tokens, hidden) -> y (tokens, hidden), overwritten. Collective over the group.
  void forward(Device& device, Matrix<const T> n, const MlpActivations<T>& act, Matrix<T> y) const;

  /// Fills act.hidden again from act.gate_up.
  void recompute_hidden(Device& device, const MlpActivations<T>& act) const;

  /// dy -> dn, overwritten. dhidden (tokens, local width) is scratch. The returned request must be waited
  /// for before dn is read.
  [[nodiscard]] comm::Request backward(Device& device, Matrix<const T> n, Matrix<const T> dy,
                                       const MlpActivations<T>& act, Matrix<T> dhidden,
                                       Matrix<T> dn) const;

 private:
  ColumnParallelLinear<T> gate_up_;
  RowParallelLinear<T> down_;
};

}  // namespace nanotron::nn
