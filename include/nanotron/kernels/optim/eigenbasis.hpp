#pragma once

// Orthonormal bases of eigenvectors of a symmetric positive semidefinite matrix A, by LAPACK on the host, in fp64:
//
//   first         eigenvectors, eigenvalues descending
//   next          Q of the QR decomposition of A Q, the columns sorted by q_j^T A q_j, descending: one step of the
//   power
//                 iteration
//
// Signs: the diagonal of R is positive, and of a first eigenvector the component of the largest size. Eigenvalues, or
// diagonals of R, up to 16 eps beside the largest eigenvalue are rounding errors, and so is what belongs to them: their
// columns are zeros, which Householder's QR completes to a basis. So the basis is a continuous function of A where A is
// singular, as a sum of few products of narrow matrices is; without that, matrices of other grids, which differ by
// rounding, would have other bases.

#include <cstddef>
#include <cstdint>

#include "nanotron/base/types.hpp"

namespace nanotron::kernels {

/// Matrices up to this side: LAPACK counts its workspace in 32 bits.
inline constexpr std::int64_t largest_eigen_side = 32000;

/// Elements of the workspace for matrices up to n x n.
struct EigenSizes {
  std::size_t reals = 0, integers = 0;
};
EigenSizes eigen_sizes(index_t n);

/// On the host: at least the sizes of its matrices.
struct EigenWorkspace {
  double* reals = nullptr;
  std::int32_t* integers = nullptr;
};

/// q <- the first basis of a; (n, n) row-major on the host, a vector a column. M is double or float, whose eps counts.
template <class M>
void first_basis(const M* a, M* q, index_t n, const EigenWorkspace& workspace);

/// q <- the next basis, for aq = A Q. order (n): column j was column order[j].
template <class M>
void next_basis(const M* aq, M* q, index_t n, std::int32_t* order, const EigenWorkspace& workspace);

}  // namespace nanotron::kernels
