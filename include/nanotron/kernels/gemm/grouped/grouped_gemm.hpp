#pragma once

// A GEMM for each group of rows, all in one launch (grouped GEMM; MegaBlocks, Gale et al. 2023): in a mixture of
// experts, group g has the rows of expert g, rows begin(g) ... begin(g + 1) - 1 of X. Only the device knows begin: the
// host waits for no count. With W_g (out, in):
//
//   forward            Y_g   = X_g W_g^T
//   input gradient     dX_g  = dY_g W_g
//   weight gradient    dW_g += dY_g^T X_g
//
// bf16 operands on tensor cores (mma.sync), sums in fp32, in an order that depends on neither the number of rows nor
// that of groups. Tiles of 128 x 128 sums, 64 terms at a time; a thread block finds its tile from begin; blocks beyond
// the last tile have none. On a host the same source runs as loops, for tests.

#include <cstdint>
#include <vector>

#include "nanotron/base/error.hpp"
#include "nanotron/tensor/device.hpp"
#include "nanotron/tensor/tensor.hpp"

namespace nanotron::kernels {

/// A matrix for each group, all of one shape, `stride` elements from one to the next.
template <class T>
struct GroupMatrices {
  T* first = nullptr;
  index_t groups = 0, rows = 0, columns = 0, stride = 0;

  NANOTRON_FUNCTION MatrixRef<T> operator[](index_t g) const { return {first + g * stride, rows, columns}; }
};

/// One after another, with the stride of two neighbours, or the size of a single one. Error(system_error) if their
/// strides differ.
template <class T>
GroupMatrices<T> together(const std::vector<Matrix<T>>& matrices) {
  const Matrix<T>& one = matrices.front();
  const auto stride = matrices.size() > 1 ? matrices[1].data() - one.data() : static_cast<std::ptrdiff_t>(one.size());
  for (std::size_t g = 1; g < matrices.size(); ++g) {
    NANOTRON_REQUIRE(matrices[g].data() - matrices[g - 1].data() == stride,
                     "matrices {} and {} are not {} elements apart", g - 1, g, stride);
  }
  return {one.data(), static_cast<index_t>(matrices.size()), static_cast<index_t>(one.extent(0)),
          static_cast<index_t>(one.extent(1)), stride};
}

/// Whether the functions below accept them: out, in and stride multiples of 8, addresses of 16 bytes.
bool can_group(const GroupMatrices<const bf16>& weights);

// begin (groups + 1), begin(0) = 0, begin(groups) <= the rows of x; rows after it are neither read nor written. x
// and y, or dy and dx, are packed, at addresses that are multiples of 16 bytes. Error(system_error) if shapes do not
// match.

/// y (rows, out) <- the forward of x (rows, in).
void grouped_forward(Device& device, Matrix<const bf16> x, const GroupMatrices<const bf16>& w,
                     Vector<const std::int64_t> begin, Matrix<bf16> y);
/// dx (rows, in) <- the input gradient of dy (rows, out).
void grouped_backward_input(Device& device, Matrix<const bf16> dy, const GroupMatrices<const bf16>& w,
                            Vector<const std::int64_t> begin, Matrix<bf16> dx);
/// Adds to dw, matrices (out, in) in fp32.
void grouped_backward_weight(Device& device, Matrix<const bf16> dy, Matrix<const bf16> x,
                             Vector<const std::int64_t> begin, const GroupMatrices<float>& dw);

}  // namespace nanotron::kernels
