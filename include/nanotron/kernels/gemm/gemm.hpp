#pragma once

// GEMM. On the host BLAS (fp64), oneDNN (fp32; bf16 of few rows) and, on a processor with AMX or AVX512_BF16, tiles of
// our own (bf16) where the threads are Kokkos'; on a GPU cuBLASLt, hipBLASLt. Matrices are row-major with any leading
// dimension.
//
//   C = alpha op(A) op(B) + beta C       op(A) is (m, k), op(B) is (k, n), C is (m, n)
//
// The three forms of a linear layer y = x W^T, W (out, in):
//   forward            y  = x  W^T        gemm(none, transpose)
//   input gradient     dx = dy W          gemm(none, none)
//   weight gradient    dW += dy^T x       gemm(transpose, none), beta = 1, C of master type
//
// bf16 operands accumulate in fp32; TF32 is never used; beta = 0 does not read C.

#include <cstddef>

#include "nanotron/tensor/device.hpp"
#include "nanotron/tensor/sum_order.hpp"
#include "nanotron/tensor/tensor.hpp"

namespace nanotron::kernels {

enum class Op { none, transpose };

/// (T, C) is (double, double), (float, float), (bf16, bf16) or (bf16, float); call with both
/// explicit. Error (system_error) if the shapes do not match. Any extent may be 0; with k = 0,
/// C = beta C. Packed operands use device.gemm_workspace(). If that is too small, GemmMode::library
/// runs without packing or allocates; GemmMode::fixed_order throws Error (system_error) on the host.
///
/// With GemmMode::fixed_order an element of C is alpha s + beta c, s the sum over k in the given order, whatever m, n,
/// leading dimensions, threads and the element's position; bf16 in blocks of 32 (src/kernels/gemm/pair_order.hpp),
/// range by range. Sums of shards are rounded to C before they are added. GemmMode::library ignores `order`.
template <class T, class C>
void gemm(Device& device, Op op_a, Op op_b, double alpha, MatrixRef<const T> a, MatrixRef<const T> b, double beta,
          MatrixRef<C> c, const SumOrder& order = {});

/// C = op(A) op(B) + D with (T, C) = (T, T): D (m, n), its rows as far apart as those of C, may be C. A GPU reads D
/// where it writes C, and rounds once; a host, and GemmMode::fixed_order, copy D to C first. Otherwise as gemm.
template <class T>
void gemm_add(Device& device, Op op_a, Op op_b, MatrixRef<const T> a, MatrixRef<const T> b, MatrixRef<const T> d,
              MatrixRef<T> c, const SumOrder& order = {});

/// Bytes of GEMM workspace for op(A) (m, k) and op(B) (k, n). The workspace of a device is the max
/// over its GEMMs.
template <class T>
std::size_t gemm_workspace_bytes(GemmMode gemm_mode, Processor processor, index_t m, index_t n, index_t k);

/// Batched GEMM of one shape; the arrays of pointers are in MemorySpace too:
///   C_i = alpha op(A_i) op(B_i) + beta C_i      i < count
/// alignment: bytes, a power of two that divides every A_i, B_i and C_i. On a GPU, bf16 with less than k needs (16 for
/// k a multiple of 8, 4 for other even k) runs without tensor cores.
struct BatchedShape {
  Op op_a = Op::none, op_b = Op::none;
  index_t m = 0, n = 0, k = 0;
  index_t leading_a = 0, leading_b = 0, leading_c = 0;
  double alpha = 1, beta = 0;
  std::size_t alignment = 1;
};

template <class T, class C>
void gemm_batched(Device& device, const BatchedShape& shape, const T* const* a, const T* const* b, C* const* c,
                  index_t count);

/// The GEMM library, for logs: "BLAS" (fp64, on Arm fp32), "oneDNN" (fp32); bf16: "AMX", "AVX-512" or "BFMMLA tiles",
/// "oneDNN, bf16 instructions", "oneDNN, widened to fp32" or "BLAS, widened to fp32"; on a GPU "cuBLASLt", "rocBLAS" or
/// "hipBLASLt, rocBLAS".
template <class T>
const char* gemm_library();

}  // namespace nanotron::kernels
