#include "nanotron/nn/mlp/mlp.hpp"

#include "nanotron/kernels/mlp/swiglu.hpp"

namespace nanotron::nn {

template <class T>
void Mlp<T>::recompute_hidden(Device& device, const FeedForwardActivations<T>& act) const {
  kernels::swiglu_forward<T>(device, act.mlp.gate_up, act.mlp.hidden);
}

//   gate | up = n Wgu^T      h = silu(gate) up      y = h Wd^T, a part of the sum over the group
template <class T>
Running Mlp<T>::forward(Device& device, const TokenBatch&, ResidualStream<T>& stream, const BlockInput<T>& n,
                        const FeedForwardActivations<T>& act, const FeedForwardWorkspace<T>&, Matrix<T> y) const {
  stream.gather_multiply(device, n, gate_up_.forward(), act.mlp.gate_up);
  recompute_hidden(device, act);
  return stream.multiply_sum(device, down_.forward(), act.mlp.hidden, y);
}

//   dWd += dy^T h            dh = dy Wd
//   dgate, dup = swiglu backward of dh (kernels/mlp/swiglu.hpp), in the place of gate, up
//   dn = [dgate | dup] Wgu, a part of the sum over the group      dWgu += [dgate | dup]^T n
template <class T>
Matrix<const T> Mlp<T>::backward_inside(Device& device, ResidualStream<T>& stream, Matrix<const T> dy,
                                        const FeedForwardActivations<T>& act, const FeedForwardWorkspace<T>& work) const {
  const Matrix<const T> all_dy = stream.gather_multiply(device, {dy, {}}, down_.backward_input(), work.dhidden);
  const Matrix<T> dgate_up = act.mlp.gate_up;
  kernels::swiglu_backward<T>(device, act.mlp.gate_up, work.dhidden, dgate_up);
  return all_dy;
}

template <class T>
Running Mlp<T>::backward_input(Device& device, const TokenBatch&, ResidualStream<T>& stream,
                               const FeedForwardActivations<T>& act, const FeedForwardWorkspace<T>&, Matrix<T> dn) const {
  return stream.multiply_sum(device, gate_up_.backward_input(), act.mlp.gate_up, dn);
}

template <class T>
void Mlp<T>::backward_output_weight(Device& device, Matrix<const T> dy, const FeedForwardActivations<T>& act) const {
  down_.backward_weight(device, dy, act.mlp.hidden);
}

template <class T>
void Mlp<T>::backward_input_weight(Device& device, Matrix<const T> n, const FeedForwardActivations<T>& act) const {
  gate_up_.backward_weight(device, act.mlp.gate_up, n);
}

template class Mlp<double>;
template class Mlp<float>;
template class Mlp<bf16>;

}  // namespace nanotron::nn
