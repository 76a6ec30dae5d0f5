#include "kernels/gemm/lt/gemm_fp8_lt.hpp"

#if defined(NANOTRON_WITH_CUDA) || defined(NANOTRON_WITH_HIP_FP8)
#ifdef NANOTRON_FP8_FNUZ
#define NANOTRON_FP8_TYPE(name) NANOTRON_DATA_TYPE(name##_FNUZ)
#else
#define NANOTRON_FP8_TYPE(name) NANOTRON_DATA_TYPE(name)
#endif

namespace nanotron::kernels::detail {
namespace {

template <class E>
constexpr OperandType code_type{NANOTRON_FP8_TYPE(R_8F_E5M2), "e5m2"};
template <>
constexpr OperandType code_type<e4m3>{NANOTRON_FP8_TYPE(R_8F_E4M3), "e4m3"};

}  // namespace

// Forward of tensors (e4m3 e4m3) sums in the accumulator of the tensor cores, of fewer bits than fp32; sums of
// gradients, and all sums with scales of parts, are moved to fp32 at intervals (Liu et al. 2024, "DeepSeek-V3",
// section 3.3.2), as in NVIDIA's Transformer Engine. AMD's matrix cores sum in fp32.
template <class A, class C>
bool multiply_fp8(Device& device, const GemmProblem& p, const A* a, const Fp8Scales& of_a, const e4m3* b,
                  const Fp8Scales& of_b, const C* d, C* c) {
  const Factor alpha = factor<float>(p.alpha * fp8_code_unit * fp8_code_unit), beta = factor<float>(p.beta);
  PlannedGemm gemm = planned(device, p, {code_type<A>, code_type<e4m3>, operand_type<C>}, a, b, d, c);
  gemm.fast_accumulation = std::is_same_v<A, e4m3> && of_a.scaling == Fp8Scaling::tensor ? 1 : 0;
  gemm.scale_modes = {scale_mode(of_b.scaling), scale_mode(of_a.scaling)};  // exchanged
  return run_planned(
      device, gemm,
      [&](const GemmPlan& plan) {
        NANOTRON_CHECK_LT(lt::set_operation(plan.operation, lt::scale_a, &of_b.first, sizeof of_b.first));
        NANOTRON_CHECK_LT(lt::set_operation(plan.operation, lt::scale_b, &of_a.first, sizeof of_a.first));
      },
      [&](const GemmPlan& plan) { run(device, plan, alpha, beta, a, b, d, c); });
}
#define NANOTRON_INSTANTIATE(A, C)                                                                       \
  template bool multiply_fp8<A, C>(Device&, const GemmProblem&, const A*, const Fp8Scales&, const e4m3*, \
                                   const Fp8Scales&, const C*, C*);
NANOTRON_INSTANTIATE(e4m3, bf16)
NANOTRON_INSTANTIATE(e4m3, float)
NANOTRON_INSTANTIATE(e5m2, bf16)
NANOTRON_INSTANTIATE(e5m2, float)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::kernels::detail
#endif
