#pragma once

// GEMM of FP8 operands (kernels/fp8/quantise.hpp), in the one form that the tensor cores of Hopper have:
//
//   C = A B^T + beta C      A (m, k), B (n, k) codes with scales; sums in fp32; C (m, n)
//
// For a linear layer y = x W^T, W (out, in):
//   forward            y  = x  W^T       A = x by rows, B = W by rows
//   input gradient     dx = dy W         A = dy by rows, B = W by columns
//   weight gradient    dW += dy^T x      A = dy by columns, B = x by columns; beta = 1, C of master type
//
// A host, and a GPU where n or C is not aligned for its tensor cores, multiplies the values of the codes in bf16, which
// holds them exactly: the same sum in another order. So does a GPU with scales of tiles where m is not a multiple of 8,
// one that has no such scales (Blackwell), and one of AMD.

#include <cstddef>

#include "nanotron/kernels/fp8/quantise.hpp"
#include "nanotron/kernels/gemm/gemm.hpp"

namespace nanotron::kernels {

/// A is e4m3 or e5m2, C bf16 or float. Both operands have one scale, or A has tiles and B tiles or blocks. Not with
/// GemmMode::fixed_order. Uses device.gemm_workspace().
template <class A, class C>
void gemm_fp8(Device& device, const Fp8Operand<A>& a, const Fp8Operand<e4m3>& b, double beta, MatrixRef<C> c);

/// C = A B^T + D; D (m, n) has C's leading dimension, and may be C.
void gemm_fp8_add(Device& device, const Fp8Operand<e4m3>& a, const Fp8Operand<e4m3>& b, MatrixRef<const bf16> d,
                  MatrixRef<bf16> c);

/// GEMMs of up to m x n x k, each of a multiple of m_step rows.
struct Fp8GemmSizes {
  index_t m = 0, n = 0, k = 0;
  Fp8Scaling scaling_of_a = Fp8Scaling::tensor;
  index_t m_step = 1;
};

/// Bytes of GEMM workspace for these. Without a GPU's driver: those of Hopper.
std::size_t gemm_fp8_workspace_bytes(Processor processor, const Fp8GemmSizes& sizes);

}  // namespace nanotron::kernels
