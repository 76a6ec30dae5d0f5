// What hipBLASLt has and cuBLASLt has not.
#ifdef NANOTRON_WITH_HIPBLASLT
#include <fmt/format.h>

#include <hipblaslt/hipblaslt-ext.hpp>

#include "kernels/gemm/lt/gemm_plans.hpp"

namespace nanotron::kernels {
namespace lt {

static_assert(sizeof(Algorithm) == 24, "a file of algorithms has 48 digits for each");

std::string name() {
  return fmt::format("hipBLASLt {}.{}.{}, {}", HIPBLASLT_VERSION_MAJOR, HIPBLASLT_VERSION_MINOR,
                     HIPBLASLT_VERSION_PATCH, device_name());
}

void state_more(Operation, const detail::PlannedGemm&) {}

// Its kernels ask for no alignment beyond that of elements. All add parts of a sum over k in one order, from a buffer
// of the accumulation type: of GlobalSplitUAlgorithm its tables of 2024-10 (Tensile/Logic) have MultipleBuffer and
// MultipleBufferSingleKernel alone, never SingleBuffer, which adds by atomics.
void state_more(Preference, const detail::PlannedGemm&) {}

bool can_run(Handle handle, const detail::GemmPlan& plan) {
  const bool is_wide = plan.gemm.types.a.type == type_of<double>;
  const auto of = [&](double value) { return is_wide ? detail::factor<double>(value) : detail::factor<float>(value); };
  const detail::Factor alpha = of(plan.gemm.problem.alpha), beta = of(plan.gemm.problem.beta);
  Algorithm algorithm = plan.algorithm;
  std::size_t workspace = 0;
  const hipblasStatus_t status = hipblaslt_ext::matmulIsAlgoSupported(handle, plan.operation, &alpha, plan.a, plan.b,
                                                                      &beta, plan.c, plan.c, algorithm, workspace);
  return status == HIPBLAS_STATUS_SUCCESS && workspace <= plan.gemm.workspace;
}

}  // namespace lt

// hipBLASLt has no such share.
void leave_multiprocessors(Device&, int) {}

}  // namespace nanotron::kernels
#endif
