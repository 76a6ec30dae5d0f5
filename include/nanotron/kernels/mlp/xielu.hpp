#pragma once

// xIELU (Huang and Schlag 2024, arXiv 2411.13010; Apertus): an activation with two learnt scalars a_p, a_n.
//
//   x > 0     h = p x^2 + b x                                p = softplus(a_p)
//   x <= 0    h = n (exp(min(x, eps)) - 1 - x) + b x         n = b + softplus(a_n)
//
// b = 0.5, eps = -1e-6. Scalars and their gradients are of master type M.

#include "nanotron/kernels/mlp/activation_scalars.hpp"
#include "nanotron/tensor/device.hpp"

namespace nanotron::kernels {

/// x, h (rows, columns); h is overwritten and may alias x. Call with T explicit.
template <class T>
void xielu_forward(Device& device, const ActivationScalars<master_t<T>>& a, Matrix<const T> x, Matrix<T> h);

/// x is overwritten by its gradient. da_p, da_n (1) are accumulated, in a fixed order by way of `workspace`.
template <class T>
void xielu_backward(Device& device, const ActivationScalars<master_t<T>>& a, Matrix<T> x, Matrix<const T> dh,
                    Vector<master_t<T>> da_p, Vector<master_t<T>> da_n, Vector<master_t<T>> workspace);
/// The same, but instead of da_p, da_n returns their addends: (order.token_segments, 2), each a tree over the shards of
/// the columns, in `workspace`. kernels::add_tree adds them.
template <class T>
Matrix<master_t<T>> xielu_backward_parts(Device& device, const ActivationScalars<master_t<T>>& a, Matrix<T> x,
                                         Matrix<const T> dh, Vector<master_t<T>> workspace, const ScalarOrder& order);

/// Elements of the workspace of both.
index_t xielu_workspace_size(Processor processor, index_t rows, index_t columns, const ScalarOrder& order = {});

}  // namespace nanotron::kernels
