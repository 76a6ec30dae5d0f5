#include "nanotron/nn/mlp/mlp.hpp"

#include "nanotron/base/types.hpp"

namespace nanotron::nn {

template <class T>
void Mlp<T>::compute_hidden(Device& device, const FeedForwardActivations<T>& act) const {
  act_->forward(device, act.mlp.gate_up, act.mlp.hidden, act.mlp.of_hidden.maxima);
}

//   gate | up = n Wgu^T (+ b)      h = f(gate, up) or f(up)      y = h Wd^T, summed over the group
template <class T>
void Mlp<T>::forward_to_last_gemm(Device& device, const TokenBatch&, TensorParallelRegion<T>& region,
                                  const BlockInput<T>& n, const FeedForwardActivations<T>& act,
                                  const FeedForwardWorkspace<T>&) const {
  region.all_gather_gemm(device, n, gate_up_.forward(act.mlp.of_input), act.mlp.gate_up);
  compute_hidden(device, act);
}

template <class T>
Pending Mlp<T>::forward_output(Device& device, const TokenBatch&, TensorParallelRegion<T>& region, const BlockInput<T>&,
                               const FeedForwardActivations<T>& act, const FeedForwardWorkspace<T>&,
                               Matrix<const T> addend, Matrix<T> y) const {
  return region.gemm_reduce(device, down_.forward_part(act.mlp.of_hidden, addend), act.mlp.hidden, y);
}

//   dWd += dy^T h            dbd += sum over tokens of dy            dh = dy Wd
//   dgate, dup = Activation backward of dh, overwriting gate, up
//   dn = [dgate | dup] Wgu, summed over the group
//   dWgu += [dgate | dup]^T n      db += sum over tokens of [dgate | dup]
template <class T>
Matrix<const T> Mlp<T>::backward_inside(Device& device, TensorParallelRegion<T>& region, Matrix<const T> dy,
                                        const FeedForwardActivations<T>& act,
                                        const FeedForwardWorkspace<T>& work) const {
  const Matrix<const T> all_dy = region.all_gather_gemm(device, {dy, {}}, down_.backward_input(), work.dhidden);
  act_->backward(device, act.mlp.gate_up, work.dhidden, act.mlp.gradient_maxima, work.sums);
  return all_dy;
}

template <class T>
Pending Mlp<T>::backward_input(Device& device, const TokenBatch&, TensorParallelRegion<T>& region,
                               const FeedForwardActivations<T>& act, const FeedForwardWorkspace<T>& work,
                               Matrix<T> dn) const {
  return region.gemm_reduce(device, act_->input_gradient(gate_up_, act.mlp.gradient_maxima, work.dhidden),
                            act.mlp.gate_up, dn);
}

template <class T>
void Mlp<T>::backward_output_weight(Device& device, Matrix<const T> dy, const FeedForwardActivations<T>& act,
                                    const FeedForwardWorkspace<T>& work) const {
  down_.backward_weight(device, dy, act.mlp.hidden, work.sums, act.mlp.of_hidden);
}

template <class T>
void Mlp<T>::backward_input_weight(Device& device, Matrix<const T> n, const FeedForwardActivations<T>& act,
                                   const FeedForwardWorkspace<T>& work) const {
  gate_up_.backward_weight(device, act.mlp.gate_up, n, work.sums, act.mlp.of_input);
}

NANOTRON_INSTANTIATE_CLASS(Mlp)

}  // namespace nanotron::nn
