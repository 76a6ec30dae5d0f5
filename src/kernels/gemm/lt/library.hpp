#pragma once

// cuBLASLt, or hipBLASLt, which has its interface: types, functions and values of both under one name, and what
// differs. hipBLASLt from ROCm 6.1 on; before, it had types of its own.

#include "nanotron/base/error.hpp"
#include "nanotron/kernels/gemm/gemm.hpp"

#ifdef NANOTRON_WITH_HIP
#include <hipblaslt/hipblaslt.h>
#define NANOTRON_LT(name) hipblasLt##name
#define NANOTRON_LT_VALUE(name) HIPBLASLT_##name
#define NANOTRON_BLAS_VALUE(name) HIPBLAS_##name
#define NANOTRON_DATA_TYPE(name) HIP_##name
#define NANOTRON_CHECK_LT NANOTRON_CHECK_HIPBLAS
#else
#include <cublasLt.h>
#define NANOTRON_LT(name) cublasLt##name
#define NANOTRON_LT_VALUE(name) CUBLASLT_##name
#define NANOTRON_BLAS_VALUE(name) CUBLAS_##name
#define NANOTRON_DATA_TYPE(name) CUDA_##name
#define NANOTRON_CHECK_LT NANOTRON_CHECK_CUBLAS
#endif

namespace nanotron::kernels {

namespace detail {
struct GemmPlan;
struct PlannedGemm;
}  // namespace detail

namespace lt {

using Handle = NANOTRON_LT(Handle_t);
using Operation = NANOTRON_LT(MatmulDesc_t);
using OperationAttribute = NANOTRON_LT(MatmulDescAttributes_t);
using Layout = NANOTRON_LT(MatrixLayout_t);
using Preference = NANOTRON_LT(MatmulPreference_t);
using Algorithm = NANOTRON_LT(MatmulAlgo_t);
using HeuristicResult = NANOTRON_LT(MatmulHeuristicResult_t);
using DataType = decltype(NANOTRON_DATA_TYPE(R_32F));
using Transpose = decltype(NANOTRON_BLAS_VALUE(OP_N));

inline constexpr auto create = NANOTRON_LT(Create);
inline constexpr auto destroy = NANOTRON_LT(Destroy);
inline constexpr auto create_operation = NANOTRON_LT(MatmulDescCreate);
inline constexpr auto destroy_operation = NANOTRON_LT(MatmulDescDestroy);
inline constexpr auto set_operation = NANOTRON_LT(MatmulDescSetAttribute);
inline constexpr auto create_layout = NANOTRON_LT(MatrixLayoutCreate);
inline constexpr auto destroy_layout = NANOTRON_LT(MatrixLayoutDestroy);
inline constexpr auto create_preference = NANOTRON_LT(MatmulPreferenceCreate);
inline constexpr auto destroy_preference = NANOTRON_LT(MatmulPreferenceDestroy);
inline constexpr auto set_preference = NANOTRON_LT(MatmulPreferenceSetAttribute);
inline constexpr auto find_algorithms = NANOTRON_LT(MatmulAlgoGetHeuristic);
inline constexpr auto multiply = NANOTRON_LT(Matmul);

inline constexpr auto success = NANOTRON_BLAS_VALUE(STATUS_SUCCESS);
inline constexpr auto transpose_a = NANOTRON_LT_VALUE(MATMUL_DESC_TRANSA);
inline constexpr auto transpose_b = NANOTRON_LT_VALUE(MATMUL_DESC_TRANSB);
inline constexpr auto scale_a = NANOTRON_LT_VALUE(MATMUL_DESC_A_SCALE_POINTER);
inline constexpr auto scale_b = NANOTRON_LT_VALUE(MATMUL_DESC_B_SCALE_POINTER);
inline constexpr auto max_workspace = NANOTRON_LT_VALUE(MATMUL_PREF_MAX_WORKSPACE_BYTES);
inline constexpr auto sums_in_fp64 = NANOTRON_BLAS_VALUE(COMPUTE_64F);
inline constexpr auto sums_in_fp32 = NANOTRON_BLAS_VALUE(COMPUTE_32F);  // never TF32

inline Transpose transpose(Op op) { return op == Op::none ? NANOTRON_BLAS_VALUE(OP_N) : NANOTRON_BLAS_VALUE(OP_T); }

template <class T>
inline constexpr DataType type_of = NANOTRON_DATA_TYPE(R_16BF);
template <>
inline constexpr DataType type_of<double> = NANOTRON_DATA_TYPE(R_64F);
template <>
inline constexpr DataType type_of<float> = NANOTRON_DATA_TYPE(R_32F);

// library_cuda.cpp, library_hip.cpp

using Status = decltype(success);

/// "cuBLASLt 130100, NVIDIA H200": algorithms are of one library on one kind of GPU.
std::string name(Handle handle);
/// Whether find_algorithms says by it that there are none.
bool has_none(Status status);
/// What one of both alone has: scales of parts, shares of the GPU, alignments, how parts of a sum are added.
void state_more(Operation operation, const detail::PlannedGemm& gemm);
void state_more(Preference preference, const detail::PlannedGemm& gemm);
/// Whether plan.algorithm, read from a file, can run it, in its workspace.
bool can_run(Handle handle, detail::GemmPlan& plan);

}  // namespace lt
}  // namespace nanotron::kernels
