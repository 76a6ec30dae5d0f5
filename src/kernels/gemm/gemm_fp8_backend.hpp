#pragma once

// The GEMM of FP8 operands on tensor cores that gemm_fp8.cpp calls in a CUDA build.

#include "kernels/gemm/gemm_backend.hpp"
#include "nanotron/base/fp8.hpp"

namespace nanotron::kernels::detail {

// C (m, n) = A B^T + beta D on tensor cores, A (m, k) and B (n, k) codes with scales on the device. n, k
// and the leading dimensions of A and B are multiples of 16; rows of C and D begin at multiples of 16 bytes.
template <class A, class C>
void multiply_fp8(Device& device, const GemmProblem& problem, const A* a, const float* scale_a, const e4m3* b,
                  const float* scale_b, const C* d, C* c);

}  // namespace nanotron::kernels::detail
