#include "kernels/gemm/gemm_fp8_backend.hpp"

#include <array>
#include <utility>

#include "kernels/gemm/cuda/gemm_plans.hpp"
#include "nanotron/base/error.hpp"

namespace nanotron {
namespace kernels {
namespace detail {
namespace {

template <class E>
constexpr OperandType code_type{CUDA_R_8F_E5M2, "e5m2"};
template <>
constexpr OperandType code_type<e4m3>{CUDA_R_8F_E4M3, "e4m3"};

#if CUBLAS_VERSION >= 120900
std::int32_t mode_of(Fp8Scaling scaling) {
  return scaling == Fp8Scaling::tensor  ? CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F
         : scaling == Fp8Scaling::tiles ? CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F
                                        : CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
}
#else
std::int32_t mode_of(Fp8Scaling) { return 0; }
#endif

}  // namespace

// Blackwell scales parts of 32 in powers of two instead.
bool has_block_scales() {
  static const bool has = [] {
    if (CUBLAS_VERSION < 120900 || cublasLtGetVersion() < 120900) return false;
    int current = 0;
    cudaDeviceProp properties{};
    NANOTRON_CHECK_GPU(cudaGetDevice(&current));
    NANOTRON_CHECK_GPU(cudaGetDeviceProperties(&properties, current));
    return properties.major == 9;
  }();
  return has;
}

// Forward of tensors (e4m3 e4m3) sums in the accumulator of the tensor cores, of fewer bits than fp32; sums of
// gradients, and all sums with scales of parts, are moved to fp32 at intervals (Liu et al. 2024, "DeepSeek-V3",
// section 3.3.2), as in NVIDIA's Transformer Engine.
template <class A, class C>
void multiply_fp8(Device& device, const GemmProblem& p, const A* a, const Fp8Scales& of_a, const e4m3* b,
                  const Fp8Scales& of_b, const C* d, C* c) {
  const Factor alpha = factor<float>(p.alpha), beta = factor<float>(p.beta);
  PlannedGemm gemm = planned(device, p, {code_type<A>, code_type<e4m3>, operand_type<C>}, a, b, d, c);
  gemm.fast_accumulation = std::is_same_v<A, e4m3> && of_a.scaling == Fp8Scaling::tensor ? 1 : 0;
  gemm.scale_modes = {mode_of(of_b.scaling), mode_of(of_a.scaling)};  // exchanged
  run_planned(device, gemm, [&](const GemmPlan& plan) {
    const std::array<std::pair<cublasLtMatmulDescAttributes_t, const float*>, 2> scales{
        {{CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, of_b.first}, {CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, of_a.first}}};
    for (const auto& [attribute, scale] : scales) {
      NANOTRON_CHECK_CUBLAS(cublasLtMatmulDescSetAttribute(plan.operation, attribute, &scale, sizeof scale));
    }
    run(device, plan, alpha, beta, a, b, d, c);
  });
}
#define NANOTRON_INSTANTIATE(A, C)                                                                       \
  template void multiply_fp8<A, C>(Device&, const GemmProblem&, const A*, const Fp8Scales&, const e4m3*, \
                                   const Fp8Scales&, const C*, C*);
NANOTRON_INSTANTIATE(e4m3, bf16)
NANOTRON_INSTANTIATE(e4m3, float)
NANOTRON_INSTANTIATE(e5m2, bf16)
NANOTRON_INSTANTIATE(e5m2, float)
#undef NANOTRON_INSTANTIATE

}  // namespace detail
}  // namespace kernels
}  // namespace nanotron
