#pragma once

// What the program uses of hipBLASLt (library/include of 1.1.0, hipblas-common 7.1, with their numbers), for the
// emulated GPU.

#include <hip/hip_runtime_api.h>
#include <hip/library_types.h>

#include <cstddef>
#include <cstdint>

#define HIPBLASLT_VERSION_MAJOR 1
#define HIPBLASLT_VERSION_MINOR 1
#define HIPBLASLT_VERSION_PATCH 0

#if HIP_VERSION < 60000000  // which has fewer types
inline constexpr hipDataType HIP_R_16BF = static_cast<hipDataType>(14);
inline constexpr hipDataType HIP_R_8F_E4M3_FNUZ = static_cast<hipDataType>(1000);
inline constexpr hipDataType HIP_R_8F_E5M2_FNUZ = static_cast<hipDataType>(1001);
#endif

extern "C" {

typedef enum {
  HIPBLAS_STATUS_SUCCESS = 0,
  HIPBLAS_STATUS_NOT_INITIALIZED = 1,
  HIPBLAS_STATUS_ALLOC_FAILED = 2,
  HIPBLAS_STATUS_INVALID_VALUE = 3
} hipblasStatus_t;
typedef enum { HIPBLAS_OP_N = 111, HIPBLAS_OP_T = 112 } hipblasOperation_t;
typedef enum { HIPBLAS_COMPUTE_32F = 2, HIPBLAS_COMPUTE_64F = 7 } hipblasComputeType_t;
typedef enum {
  HIPBLASLT_MATMUL_DESC_TRANSA = 0,
  HIPBLASLT_MATMUL_DESC_TRANSB = 1,
  HIPBLASLT_MATMUL_DESC_A_SCALE_POINTER = 5,
  HIPBLASLT_MATMUL_DESC_B_SCALE_POINTER = 6
} hipblasLtMatmulDescAttributes_t;
typedef enum { HIPBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES = 1 } hipblasLtMatmulPreferenceAttributes_t;

typedef struct {
  std::uint64_t data[4];
} hipblasLtMatmulDescOpaque_t;
typedef struct {
  std::uint64_t data[4];
} hipblasLtMatrixLayoutOpaque_t;
typedef struct {
  std::uint64_t data[5];
} hipblasLtMatmulPreferenceOpaque_t;
typedef void* hipblasLtHandle_t;
typedef hipblasLtMatmulDescOpaque_t* hipblasLtMatmulDesc_t;
typedef hipblasLtMatrixLayoutOpaque_t* hipblasLtMatrixLayout_t;
typedef hipblasLtMatmulPreferenceOpaque_t* hipblasLtMatmulPreference_t;
typedef struct {
  std::uint8_t data[16] = {0};
  std::size_t max_workspace_bytes = 0;
} hipblasLtMatmulAlgo_t;
typedef struct {
  hipblasLtMatmulAlgo_t algo;
  std::size_t workspaceSize = 0;
  hipblasStatus_t state = HIPBLAS_STATUS_SUCCESS;
  float wavesCount = 1.0;
  int reserved[4];
} hipblasLtMatmulHeuristicResult_t;

hipblasStatus_t hipblasLtGetVersion(hipblasLtHandle_t handle, int* version);
hipblasStatus_t hipblasLtGetGitRevision(hipblasLtHandle_t handle, char* revision);
hipblasStatus_t hipblasLtCreate(hipblasLtHandle_t* handle);
hipblasStatus_t hipblasLtDestroy(const hipblasLtHandle_t handle);
hipblasStatus_t hipblasLtMatrixLayoutCreate(hipblasLtMatrixLayout_t* made, hipDataType type, std::uint64_t rows,
                                            std::uint64_t columns, std::int64_t leading);
hipblasStatus_t hipblasLtMatrixLayoutDestroy(const hipblasLtMatrixLayout_t layout);
hipblasStatus_t hipblasLtMatmulDescCreate(hipblasLtMatmulDesc_t* made, hipblasComputeType_t compute, hipDataType scale);
hipblasStatus_t hipblasLtMatmulDescDestroy(const hipblasLtMatmulDesc_t operation);
hipblasStatus_t hipblasLtMatmulDescSetAttribute(hipblasLtMatmulDesc_t operation,
                                                hipblasLtMatmulDescAttributes_t attribute, const void* value,
                                                std::size_t bytes);
hipblasStatus_t hipblasLtMatmulPreferenceCreate(hipblasLtMatmulPreference_t* made);
hipblasStatus_t hipblasLtMatmulPreferenceDestroy(const hipblasLtMatmulPreference_t preference);
hipblasStatus_t hipblasLtMatmulPreferenceSetAttribute(hipblasLtMatmulPreference_t preference,
                                                      hipblasLtMatmulPreferenceAttributes_t attribute,
                                                      const void* value, std::size_t bytes);
hipblasStatus_t hipblasLtMatmulAlgoGetHeuristic(hipblasLtHandle_t handle, hipblasLtMatmulDesc_t operation,
                                                hipblasLtMatrixLayout_t a, hipblasLtMatrixLayout_t b,
                                                hipblasLtMatrixLayout_t c, hipblasLtMatrixLayout_t d,
                                                hipblasLtMatmulPreference_t preference, int wanted,
                                                hipblasLtMatmulHeuristicResult_t* found, int* count);
hipblasStatus_t hipblasLtMatmul(hipblasLtHandle_t handle, hipblasLtMatmulDesc_t operation, const void* alpha,
                                const void* a, hipblasLtMatrixLayout_t layout_a, const void* b,
                                hipblasLtMatrixLayout_t layout_b, const void* beta, const void* c,
                                hipblasLtMatrixLayout_t layout_c, void* d, hipblasLtMatrixLayout_t layout_d,
                                const hipblasLtMatmulAlgo_t* algorithm, void* workspace, std::size_t workspace_bytes,
                                hipStream_t stream);
}
