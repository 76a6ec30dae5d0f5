#pragma once

// The GEMM of FP8 operands on tensor cores that gemm_fp8.cpp calls: of cuBLASLt, and of hipBLASLt for MI300 and MI350.

#include "kernels/gemm/gemm_backend.hpp"
#include "nanotron/kernels/fp8/quantise.hpp"

namespace nanotron::kernels::detail {

// The scales of an operand (kernels/fp8/blocks.hpp).
struct Fp8Scales {
  const float* first = nullptr;
  Fp8Scaling scaling = Fp8Scaling::tensor;
};

#if defined(NANOTRON_WITH_CUDA) || defined(NANOTRON_WITH_HIP_FP8)
inline constexpr bool has_fp8_gemms = true;
#else
inline constexpr bool has_fp8_gemms = false;
#endif

// Whether multiply_fp8 takes scales of tiles and blocks: cuBLASLt 12.9 or later, on Hopper.
bool has_block_scales();

// hipBLASLt may have no algorithm; then the operands are multiplied in bf16.
#if defined(NANOTRON_WITH_HIP)
inline constexpr bool may_lack_fp8_gemms = true;
#else
inline constexpr bool may_lack_fp8_gemms = false;
#endif

// False, and nothing is done, if the library has no algorithm. C (m, n) = A B^T + beta D on tensor cores, A (m, k) and
// B (n, k) codes with scales on the device. n, k and the leading dimensions of A and B are multiples of 16; rows of C
// and D begin at multiples of 16 bytes. With scales of tiles m is a multiple of 8.
template <class A, class C>
bool multiply_fp8(Device& device, const GemmProblem& problem, const A* a, const Fp8Scales& of_a, const e4m3* b,
                  const Fp8Scales& of_b, const C* d, C* c);

}  // namespace nanotron::kernels::detail
