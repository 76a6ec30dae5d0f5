// Where cuBLASLt differs from hipBLASLt.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "kernels/gemm/lt/gemm_plans.hpp"

namespace nanotron::kernels {
namespace lt {

static_assert(sizeof(Algorithm) == 64, "a file of algorithms has 128 digits for each");

std::string name(Handle) { return fmt::format("cuBLASLt {}, {}", cublasLtGetVersion(), device_name()); }

void state_more(Operation operation, const detail::PlannedGemm& gemm) {
  if (gemm.multiprocessors > 0) {
    NANOTRON_CHECK_LT(set_operation(operation, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, &gemm.multiprocessors,
                                    sizeof gemm.multiprocessors));
  }
  if (gemm.fast_accumulation != 0) {
    NANOTRON_CHECK_LT(set_operation(operation, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &gemm.fast_accumulation,
                                    sizeof gemm.fast_accumulation));
  }
#if CUBLAS_VERSION >= 120900
  if (gemm.scale_modes != detail::ScaleModes()) {
    const detail::ScaleModes& modes = gemm.scale_modes;
    NANOTRON_CHECK_LT(set_operation(operation, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &modes.a, sizeof modes.a));
    NANOTRON_CHECK_LT(set_operation(operation, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &modes.b, sizeof modes.b));
  }
#endif
}

void state_more(Preference preference, const detail::PlannedGemm& gemm) {
  const std::array<std::pair<cublasLtMatmulPreferenceAttributes_t, std::uint32_t>, 5> more{
      {{CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, gemm.alignments.a},
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, gemm.alignments.b},
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, gemm.alignments.c},
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, gemm.alignments.d},
       // Parts of a sum over k are added in the accumulation type and rounded once.
       {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE}}};
  for (const auto& [attribute, value] : more) {
    NANOTRON_CHECK_LT(set_preference(preference, attribute, &value, sizeof value));
  }
}

bool has_none(Status status) { return status == CUBLAS_STATUS_NOT_SUPPORTED; }

bool can_run(Handle handle, detail::GemmPlan& plan) {
  HeuristicResult checked{};
  const cublasStatus_t status =
      cublasLtMatmulAlgoCheck(handle, plan.operation, plan.a, plan.b, plan.c, plan.c, &plan.algorithm, &checked);
  return status == CUBLAS_STATUS_SUCCESS && checked.workspaceSize <= plan.gemm.workspace;
}

}  // namespace lt

void leave_multiprocessors(Device& device, int count) {
  int current = 0;
  gpuDeviceProp properties{};
  NANOTRON_CHECK_GPU(gpuGetDevice(&current));
  NANOTRON_CHECK_GPU(gpuGetDeviceProperties(&properties, current));
  detail::gemm_plans(device).multiprocessors = count > 0 ? std::max(1, properties.multiProcessorCount - count) : 0;
}

}  // namespace nanotron::kernels
