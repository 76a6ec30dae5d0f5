#pragma once

#include <hipblaslt/hipblaslt.h>

#include <vector>

namespace hipblaslt_ext {

int getIndexFromAlgo(hipblasLtMatmulAlgo_t& algorithm);
hipblasStatus_t getAlgosFromIndex(hipblasLtHandle_t handle, std::vector<int>& numbers,
                                  std::vector<hipblasLtMatmulHeuristicResult_t>& found);

hipblasStatus_t matmulIsAlgoSupported(hipblasLtHandle_t handle, hipblasLtMatmulDesc_t operation, const void* alpha,
                                      hipblasLtMatrixLayout_t a, hipblasLtMatrixLayout_t b, const void* beta,
                                      hipblasLtMatrixLayout_t c, hipblasLtMatrixLayout_t d,
                                      hipblasLtMatmulAlgo_t& algorithm, std::size_t& workspace_bytes);

}  // namespace hipblaslt_ext
