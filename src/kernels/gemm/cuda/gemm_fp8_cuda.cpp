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

}  // namespace

// Forward (e4m3 e4m3) sums in the accumulator of the tensor cores, of fewer bits than fp32; sums of gradients are moved
// to fp32 at intervals (Liu et al. 2024, "DeepSeek-V3", section 3.3.2), as in NVIDIA's Transformer Engine.
template <class A, class C>
void multiply_fp8(Device& device, const GemmProblem& p, const A* a, const float* scale_a, const e4m3* b,
                  const float* scale_b, const C* d, C* c) {
  const Factor alpha = factor<float>(p.alpha), beta = factor<float>(p.beta);
  PlannedGemm gemm = planned(device, p, {code_type<A>, code_type<e4m3>, operand_type<C>}, a, b, d, c);
  gemm.fast_accumulation = std::is_same_v<A, e4m3> ? 1 : 0;
  run_planned(device, gemm, [&](const GemmPlan& plan) {
    const std::array<std::pair<cublasLtMatmulDescAttributes_t, const float*>, 2> scales{
        {{CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, scale_b}, {CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, scale_a}}};
    for (const auto& [attribute, scale] : scales) {
      NANOTRON_CHECK_CUBLAS(cublasLtMatmulDescSetAttribute(plan.operation, attribute, &scale, sizeof scale));
    }
    run(device, plan, alpha, beta, a, b, d, c);
  });
}
#define NANOTRON_INSTANTIATE(A, C)                                                                                 \
  template void multiply_fp8<A, C>(Device&, const GemmProblem&, const A*, const float*, const e4m3*, const float*, \
                                   const C*, C*);
NANOTRON_INSTANTIATE(e4m3, bf16)
NANOTRON_INSTANTIATE(e5m2, bf16)
NANOTRON_INSTANTIATE(e5m2, float)
#undef NANOTRON_INSTANTIATE

}  // namespace detail
}  // namespace kernels
}  // namespace nanotron
