#pragma once

// Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon) for 2-D parameters: Nesterov momentum,
// orthogonalised by Newton-Schulz iterations.
//
//   m = beta m + (1 - beta) g'         u = beta m + (1 - beta) g'         g' = gradient_scale g
//   X = u / max(|u|, 1e-7)             the Frobenius norm
//   steps times:  A = X X^T,  X = a X + (b A + c A^2) X            rows <= columns
//                 A = X^T X,  X = a X + X (b A + c A^2)            rows > columns
//
// (a, b, c) = (3.4445, -4.7750, 2.0315) grow small singular values fastest. After 5 steps a singular value above
// 0.0015 |u| is in [0.68, 1.21]: U S V^T has become about U V^T.

#include "nanotron/kernels/optim/update_scalars.hpp"
#include "nanotron/tensor/device.hpp"
#include "nanotron/tensor/tensor.hpp"

namespace nanotron::kernels {

/// m (n) is updated and u (n) written if scalars (1) allow it, g (n) is read.
template <class M>
void nesterov(Device& device, Vector<const M> g, Vector<M> m, Vector<M> u, double beta,
              Vector<const UpdateScalars> scalars);

/// Orthogonalises x in place, at any scale; a zero matrix stays zero. workspace has
/// orthogonalise_workspace(rows, columns) elements or more, the first at a multiple of 64 bytes.
template <class M>
void orthogonalise(Device& device, Matrix<M> x, Vector<M> workspace, int steps);
index_t orthogonalise_workspace(index_t rows, index_t columns);

/// p(i) = keep p(i) - rate direction(first + i) if scalars (1) allow it, direction indexed in row-major order. copy
/// (as p, or empty): p rounded to bf16.
template <class M>
void descend(Device& device, Vector<M> p, MatrixRef<const M> direction, index_t first, double keep, double rate,
             Vector<const UpdateScalars> scalars, Vector<bf16> copy = {});

}  // namespace nanotron::kernels
