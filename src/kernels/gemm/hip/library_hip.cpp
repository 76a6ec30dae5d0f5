// Where hipBLASLt differs from cuBLASLt.
#ifdef NANOTRON_WITH_HIPBLASLT
#include <fmt/format.h>

#include <array>
#include <hipblaslt/hipblaslt-ext.hpp>
#include <vector>

#include "kernels/gemm/lt/gemm_plans.hpp"

namespace nanotron::kernels {
namespace lt {

static_assert(sizeof(Algorithm) == 24, "a file of algorithms has 48 digits for each");

// The revision too: algorithms are numbers in the tables of one build.
std::string name(Handle handle) {
  int version = 0;
  std::array<char, 256> revision{};
  NANOTRON_CHECK_LT(hipblasLtGetVersion(handle, &version));
  NANOTRON_CHECK_LT(hipblasLtGetGitRevision(handle, revision.data()));
  return fmt::format("hipBLASLt {} {}, {}", version, revision.data(), device_name());
}

void state_more(Operation, const detail::PlannedGemm&) {}

// Its kernels ask for no alignment beyond that of elements. They add parts of a sum over k in one order, from a buffer
// of the accumulation type: of GlobalSplitUAlgorithm the tables of 2024-10 for gfx90a and gfx942 (Tensile/Logic), as
// far as they were read, have MultipleBuffer and MultipleBufferSingleKernel alone, never SingleBuffer, which adds by
// atomics.
void state_more(Preference, const detail::PlannedGemm&) {}

// Where it has no table for this GPU, or not for these types, it says so by several of its statuses (hipblaslt.cpp,
// RocBlasLtStatusToHIPStatus), or by success and no algorithm.
bool has_none(Status status) {
  return status != HIPBLAS_STATUS_SUCCESS && status != HIPBLAS_STATUS_NOT_INITIALIZED &&
         status != HIPBLAS_STATUS_ALLOC_FAILED;
}

// matmulIsAlgoSupported follows the pointer to an algorithm that the library may not have (tensile_host.cpp of 2024-10,
// isSolutionSupported): getAlgosFromIndex is asked first.
bool can_run(Handle handle, detail::GemmPlan& plan) {
  std::vector<int> number{hipblaslt_ext::getIndexFromAlgo(plan.algorithm)};
  std::vector<HeuristicResult> found;
  if (hipblaslt_ext::getAlgosFromIndex(handle, number, found) != HIPBLAS_STATUS_SUCCESS || found.empty()) return false;
  const detail::Factor alpha = detail::factor<float>(plan.gemm.problem.alpha),
                       beta = detail::factor<float>(plan.gemm.problem.beta);
  std::size_t workspace = 0;
  const hipblasStatus_t status = hipblaslt_ext::matmulIsAlgoSupported(handle, plan.operation, &alpha, plan.a, plan.b,
                                                                      &beta, plan.c, plan.c, plan.algorithm, workspace);
  return status == HIPBLAS_STATUS_SUCCESS && workspace <= plan.gemm.workspace;
}

}  // namespace lt

// hipBLASLt has no such share.
void leave_multiprocessors(Device&, int) {}

}  // namespace nanotron::kernels
#endif
