#pragma once

// The GEMMs of experts, all experts in one launch (grouped GEMM; MegaBlocks, Gale et al. 2023). The rows of expert e
// are begin(e) ... begin(e + 1) - 1 of X. Only the device knows begin: the host waits for no count. With W_e (out, in):
//
//   forward            Y_e   = X_e W_e^T
//   input gradient     dX_e  = dY_e W_e
//   weight gradient    dW_e += dY_e^T X_e
//
// bf16 operands on tensor cores (mma.sync), sums in fp32, in an order that depends on neither the number of rows nor
// that of experts. Tiles of 128 x 128 sums, 64 terms at a time; a block of threads finds its tile from begin, and has
// none where all of them are taken. On a host the same source runs as loops, for tests.

#include <cstdint>

#include "nanotron/tensor/device.hpp"
#include "nanotron/tensor/tensor.hpp"

namespace nanotron::kernels {

/// Matrices of the experts here, of one shape, `stride` elements from one to the next.
template <class T>
struct ExpertMatrices {
  T* first = nullptr;
  index_t experts = 0, rows = 0, columns = 0, stride = 0;

  NANOTRON_FUNCTION MatrixRef<T> operator[](index_t e) const { return {first + e * stride, rows, columns}; }
};

/// Whether the functions below take them: out, in and stride multiples of 8, addresses of 16 bytes.
bool can_group(const ExpertMatrices<const bf16>& weights);

// begin (experts + 1), begin(0) = 0, begin(experts) <= the rows of x; rows after it are neither read nor written. x
// and y, or dy and dx, are packed, at addresses that are multiples of 16 bytes. Error(system_error) where shapes do not
// fit.

/// y (rows, out) <- of x (rows, in).
void grouped_forward(Device& device, Matrix<const bf16> x, const ExpertMatrices<const bf16>& w,
                     Vector<const std::int64_t> begin, Matrix<bf16> y);
/// dx (rows, in) <- of dy (rows, out).
void grouped_backward_input(Device& device, Matrix<const bf16> dy, const ExpertMatrices<const bf16>& w,
                            Vector<const std::int64_t> begin, Matrix<bf16> dx);
/// dw, of (out, in) in fp32, is added to.
void grouped_backward_weight(Device& device, Matrix<const bf16> dy, Matrix<const bf16> x,
                             Vector<const std::int64_t> begin, const ExpertMatrices<float>& dw);

}  // namespace nanotron::kernels
