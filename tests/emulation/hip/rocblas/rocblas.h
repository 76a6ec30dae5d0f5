#pragma once

// What the program uses of rocBLAS (library/include/internal of 5.5.1, with its numbers), for the emulated GPU.

#include <hip/hip_runtime_api.h>

#include <cstddef>
#include <cstdint>

extern "C" {

typedef std::int32_t rocblas_int;
typedef struct _rocblas_handle* rocblas_handle;
typedef enum { rocblas_operation_none = 111, rocblas_operation_transpose = 112 } rocblas_operation;
typedef enum {
  rocblas_datatype_f32_r = 151,
  rocblas_datatype_f64_r = 152,
  rocblas_datatype_bf16_r = 168
} rocblas_datatype;
typedef enum { rocblas_status_success = 0, rocblas_status_invalid_value = 11 } rocblas_status;
typedef enum { rocblas_atomics_not_allowed = 0, rocblas_atomics_allowed = 1 } rocblas_atomics_mode;
typedef enum { rocblas_gemm_algo_standard = 0 } rocblas_gemm_algo;
enum { rocblas_gemm_flags_none = 0 };

rocblas_status rocblas_create_handle(rocblas_handle* handle);
rocblas_status rocblas_destroy_handle(rocblas_handle handle);
rocblas_status rocblas_set_stream(rocblas_handle handle, hipStream_t stream);
rocblas_status rocblas_set_workspace(rocblas_handle handle, void* memory, std::size_t bytes);
rocblas_status rocblas_set_atomics_mode(rocblas_handle handle, rocblas_atomics_mode mode);
rocblas_status rocblas_get_version_string(char* text, std::size_t length);

rocblas_status rocblas_gemm_ex(rocblas_handle handle, rocblas_operation op_a, rocblas_operation op_b, rocblas_int m,
                               rocblas_int n, rocblas_int k, const void* alpha, const void* a, rocblas_datatype a_type,
                               rocblas_int leading_a, const void* b, rocblas_datatype b_type, rocblas_int leading_b,
                               const void* beta, const void* c, rocblas_datatype c_type, rocblas_int leading_c, void* d,
                               rocblas_datatype d_type, rocblas_int leading_d, rocblas_datatype compute_type,
                               rocblas_gemm_algo algorithm, std::int32_t solution, std::uint32_t flags);
/// a, b, c, d: arrays of `count` pointers in memory of the device.
rocblas_status rocblas_gemm_batched_ex(rocblas_handle handle, rocblas_operation op_a, rocblas_operation op_b,
                                       rocblas_int m, rocblas_int n, rocblas_int k, const void* alpha, const void* a,
                                       rocblas_datatype a_type, rocblas_int leading_a, const void* b,
                                       rocblas_datatype b_type, rocblas_int leading_b, const void* beta, const void* c,
                                       rocblas_datatype c_type, rocblas_int leading_c, void* d, rocblas_datatype d_type,
                                       rocblas_int leading_d, rocblas_int count, rocblas_datatype compute_type,
                                       rocblas_gemm_algo algorithm, std::int32_t solution, std::uint32_t flags);
}
