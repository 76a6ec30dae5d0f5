#pragma once

// Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon): the momentum of a matrix, Nesterov's look ahead
// and its orthogonalisation by Newton and Schulz.
//
//   m = beta m + (1 - beta) g'         u = beta m + (1 - beta) g'         g' = gradient_scale g
//   X = u / max(|u|, 1e-7)             the Frobenius norm
//   steps times:  A = X X^T,  X = a X + (b A + c A^2) X        for more rows than columns A = X^T X, on the right
//
// (a, b, c) = (3.4445, -4.7750, 2.0315) lift small singular values fastest; after 5 steps those above 0.0015 of
// the norm lie between 0.68 and 1.21: U S V^T has become about U V^T.

#include "nanotron/tensor/device.hpp"
#include "nanotron/tensor/tensor.hpp"

namespace nanotron::kernels {

/// m (n) is updated, u (n) is written, g (n) is read.
template <class M>
void nesterov(Device& device, Vector<const M> g, Vector<M> m, Vector<M> u, double beta, double gradient_scale);

/// x in place, from any scale; a matrix of zeros stays one. Waits for the device. workspace has orthogonalise_workspace
/// elements.
template <class M>
void orthogonalise(Device& device, Matrix<M> x, Vector<M> workspace, int steps);
index_t orthogonalise_workspace(index_t rows, index_t columns);

/// p = keep p - rate direction, where p holds elements first, first + 1, ... of that matrix in row-major order.
template <class M>
void descend(Device& device, Vector<M> p, MatrixRef<const M> direction, index_t first, double keep, double rate);

}  // namespace nanotron::kernels
