// The functions of hipBLASLt that the program calls, as queued work of an emulated MI300. As on MI250X there is no
// algorithm that multiplies bf16 and writes fp32 (Tensile/Logic/asm_full/aldebaran of 2024-10), so that rocBLAS is
// called too; of FP8 there is none for 80 rows of D, and an error for k = 16.
#include <hipblaslt/hipblaslt-ext.hpp>

#include <cstring>

#include "emulation/hip_gemm.hpp"

using namespace nanotron::emulation;

namespace {

struct Operation {
  hipblasOperation_t a = HIPBLAS_OP_N, b = HIPBLAS_OP_N;
  hipDataType scale = HIP_R_32F;
  const float *scale_a = nullptr, *scale_b = nullptr;
};
struct Layout {
  hipDataType type = HIP_R_32F;
  std::uint64_t rows = 0, columns = 0;
  std::int64_t leading = 0;

  Operand operand() const {
    return {type, static_cast<std::int64_t>(rows), static_cast<std::int64_t>(columns), leading};
  }
};
struct Preference {
  std::size_t workspace = 0;
};
// In hipblasLtMatmulAlgo_t: which one, and whether it is for FP8 operands with scales (kernels with them are others).
struct Chosen {
  std::uint32_t number = 0, has_scales = 0;
};

template <class T, class H>
T& as(H handle) {
  return *reinterpret_cast<T*>(handle);
}

Chosen chosen(const hipblasLtMatmulAlgo_t& algorithm) {
  Chosen found;
  std::memcpy(&found, algorithm.data, sizeof found);
  return found;
}

bool has_scales(const Operation& op) { return op.scale_a != nullptr && op.scale_b != nullptr; }

// (A, B, D) of Tensile/Logic/asm_full: SB, BBS of both GPUs; F8BS, B8F8BS, F8B8BS, F8SS and their like of gfx942.
bool has_kernels(hipDataType a, hipDataType b, hipDataType d) {
  if (is_fp8(a) && is_fp8(b)) return d == HIP_R_16BF || d == HIP_R_32F;
  return a == b && b == d && !is_fp8(a);
}

}  // namespace

extern "C" {

hipblasStatus_t hipblasLtGetVersion(hipblasLtHandle_t, int* version) {
  *version = 10100;
  return HIPBLAS_STATUS_SUCCESS;
}
hipblasStatus_t hipblasLtGetGitRevision(hipblasLtHandle_t, char* revision) {
  std::strcpy(revision, "emulated");
  return HIPBLAS_STATUS_SUCCESS;
}
hipblasStatus_t hipblasLtCreate(hipblasLtHandle_t* handle) {
  *handle = new char;
  return HIPBLAS_STATUS_SUCCESS;
}
hipblasStatus_t hipblasLtDestroy(const hipblasLtHandle_t handle) {
  delete static_cast<char*>(handle);
  return HIPBLAS_STATUS_SUCCESS;
}
hipblasStatus_t hipblasLtMatrixLayoutCreate(hipblasLtMatrixLayout_t* made, hipDataType type, std::uint64_t rows,
                                            std::uint64_t columns, std::int64_t leading) {
  *made = reinterpret_cast<hipblasLtMatrixLayout_t>(new Layout{type, rows, columns, leading});
  return HIPBLAS_STATUS_SUCCESS;
}
hipblasStatus_t hipblasLtMatrixLayoutDestroy(const hipblasLtMatrixLayout_t layout) {
  delete &as<Layout>(layout);
  return HIPBLAS_STATUS_SUCCESS;
}
hipblasStatus_t hipblasLtMatmulDescCreate(hipblasLtMatmulDesc_t* made, hipblasComputeType_t, hipDataType scale) {
  *made = reinterpret_cast<hipblasLtMatmulDesc_t>(new Operation{.scale = scale});
  return HIPBLAS_STATUS_SUCCESS;
}
hipblasStatus_t hipblasLtMatmulDescDestroy(const hipblasLtMatmulDesc_t operation) {
  delete &as<Operation>(operation);
  return HIPBLAS_STATUS_SUCCESS;
}
hipblasStatus_t hipblasLtMatmulDescSetAttribute(hipblasLtMatmulDesc_t operation,
                                                hipblasLtMatmulDescAttributes_t attribute, const void* value,
                                                std::size_t) {
  auto& op = as<Operation>(operation);
  if (attribute == HIPBLASLT_MATMUL_DESC_TRANSA) std::memcpy(&op.a, value, sizeof op.a);
  if (attribute == HIPBLASLT_MATMUL_DESC_TRANSB) std::memcpy(&op.b, value, sizeof op.b);
  if (attribute == HIPBLASLT_MATMUL_DESC_A_SCALE_POINTER) std::memcpy(&op.scale_a, value, sizeof op.scale_a);
  if (attribute == HIPBLASLT_MATMUL_DESC_B_SCALE_POINTER) std::memcpy(&op.scale_b, value, sizeof op.scale_b);
  return HIPBLAS_STATUS_SUCCESS;
}
hipblasStatus_t hipblasLtMatmulPreferenceCreate(hipblasLtMatmulPreference_t* made) {
  *made = reinterpret_cast<hipblasLtMatmulPreference_t>(new Preference);
  return HIPBLAS_STATUS_SUCCESS;
}
hipblasStatus_t hipblasLtMatmulPreferenceDestroy(const hipblasLtMatmulPreference_t preference) {
  delete &as<Preference>(preference);
  return HIPBLAS_STATUS_SUCCESS;
}
hipblasStatus_t hipblasLtMatmulPreferenceSetAttribute(hipblasLtMatmulPreference_t preference,
                                                      hipblasLtMatmulPreferenceAttributes_t, const void* value,
                                                      std::size_t) {
  std::memcpy(&as<Preference>(preference).workspace, value, sizeof(std::size_t));
  return HIPBLAS_STATUS_SUCCESS;
}
hipblasStatus_t hipblasLtMatmulAlgoGetHeuristic(hipblasLtHandle_t, hipblasLtMatmulDesc_t operation,
                                                hipblasLtMatrixLayout_t a, hipblasLtMatrixLayout_t b,
                                                hipblasLtMatrixLayout_t, hipblasLtMatrixLayout_t d,
                                                hipblasLtMatmulPreference_t preference, int wanted,
                                                hipblasLtMatmulHeuristicResult_t* found, int* count) {
  *count = 0;
  const auto& of_a = as<Layout>(a);
  if (!has_kernels(of_a.type, as<Layout>(b).type, as<Layout>(d).type)) return HIPBLAS_STATUS_SUCCESS;
  const std::uint64_t k = as<Operation>(operation).a == HIPBLAS_OP_T ? of_a.rows : of_a.columns;
  if (is_fp8(of_a.type) && as<Layout>(d).rows == 80) return HIPBLAS_STATUS_SUCCESS;
  if (is_fp8(of_a.type) && k == 16) return HIPBLAS_STATUS_INVALID_VALUE;  // as without tables for the GPU
  for (; *count < wanted && *count < 2; ++*count) {
    const Chosen algorithm{.number = static_cast<std::uint32_t>(*count) + 1,
                           .has_scales = has_scales(as<Operation>(operation))};
    hipblasLtMatmulHeuristicResult_t& result = found[*count];
    result = {};
    std::memcpy(result.algo.data, &algorithm, sizeof algorithm);
    result.algo.max_workspace_bytes = result.workspaceSize = as<Preference>(preference).workspace;
  }
  return HIPBLAS_STATUS_SUCCESS;
}
hipblasStatus_t hipblasLtMatmul(hipblasLtHandle_t, hipblasLtMatmulDesc_t operation, const void* alpha, const void* a,
                                hipblasLtMatrixLayout_t layout_a, const void* b, hipblasLtMatrixLayout_t layout_b,
                                const void* beta, const void* c, hipblasLtMatrixLayout_t layout_c, void* d,
                                hipblasLtMatrixLayout_t layout_d, const hipblasLtMatmulAlgo_t* algorithm,
                                void* workspace, std::size_t workspace_bytes, hipStream_t stream) {
  const auto& op = as<Operation>(operation);
  const Operand of_a = as<Layout>(layout_a).operand(), of_b = as<Layout>(layout_b).operand();
  const Operand of_c = as<Layout>(layout_c).operand(), of_d = as<Layout>(layout_d).operand();
  const Chosen runs = chosen(*algorithm);
  if (runs.number == 0) fault("hipblasLtMatmul with an algorithm that is none");
  if ((runs.has_scales != 0) != has_scales(op)) fault("hipblasLtMatmul: scales were set after it was chosen");
  if (is_fp8(of_a.type) && !has_scales(op)) fault("hipblasLtMatmul in FP8 without scales");
  if (algorithm->max_workspace_bytes > workspace_bytes) fault("hipblasLtMatmul: less workspace than it was chosen for");
  if (workspace_bytes > 0) require_device(workspace, workspace_bytes, "a GEMM's workspace");
  const Gemm gemm{.transposes_a = op.a == HIPBLAS_OP_T,
                  .transposes_b = op.b == HIPBLAS_OP_T,
                  .m = of_d.rows,
                  .n = of_d.columns,
                  .k = op.a == HIPBLAS_OP_T ? of_a.rows : of_a.columns,
                  .alpha = load(op.scale, alpha, 0),
                  .beta = load(op.scale, beta, 0),
                  .of_a = of_a,
                  .of_b = of_b,
                  .of_c = of_c,
                  .of_d = of_d,
                  .scale_a = op.scale_a,
                  .scale_b = op.scale_b};
  gemm.require(a, b, c, d);
  if (has_odd_rows(gemm)) ++gemms_of_odd_rows;
  Stream& queue = stream == nullptr ? Scheduler::instance().default_stream() : *reinterpret_cast<Stream*>(stream);
  Scheduler::instance().launch_kernel(queue, "hipblasLtMatmul", [=] { gemm(a, b, c, d); });
  return HIPBLAS_STATUS_SUCCESS;
}

}  // extern "C"

namespace hipblaslt_ext {

int getIndexFromAlgo(hipblasLtMatmulAlgo_t& algorithm) { return static_cast<int>(chosen(algorithm).number); }

hipblasStatus_t getAlgosFromIndex(hipblasLtHandle_t, std::vector<int>& numbers,
                                  std::vector<hipblasLtMatmulHeuristicResult_t>& found) {
  found.clear();
  for (const int number : numbers) {
    if (number == 1 || number == 2) found.emplace_back();
  }
  return found.empty() ? HIPBLAS_STATUS_INVALID_VALUE : HIPBLAS_STATUS_SUCCESS;
}

hipblasStatus_t matmulIsAlgoSupported(hipblasLtHandle_t, hipblasLtMatmulDesc_t operation, const void*,
                                      hipblasLtMatrixLayout_t, hipblasLtMatrixLayout_t, const void*,
                                      hipblasLtMatrixLayout_t, hipblasLtMatrixLayout_t,
                                      hipblasLtMatmulAlgo_t& algorithm, std::size_t& workspace_bytes) {
  const Chosen asked = chosen(algorithm);
  if (asked.number != 1 && asked.number != 2) fault("matmulIsAlgoSupported: the library has no such algorithm");
  if ((asked.has_scales != 0) != has_scales(as<Operation>(operation))) {
    return HIPBLAS_STATUS_INVALID_VALUE;
  }
  workspace_bytes = algorithm.max_workspace_bytes;
  return HIPBLAS_STATUS_SUCCESS;
}

}  // namespace hipblaslt_ext
