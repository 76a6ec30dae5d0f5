// The functions of rocBLAS that the program calls, as queued work of an emulated GPU. Column-major, like theirs.
#include <rocblas/rocblas.h>

#include <cstdio>
#include <cstring>

#include "emulation/hip_gemm.hpp"

using namespace nanotron::emulation;

struct _rocblas_handle {
  hipStream_t stream = nullptr;
  bool adds_in_any_order = true;  // rocBLAS' default
};

namespace {

// The types that rocblas_gemm_ex lists: sums of bf16 in fp32, the result in either.
void require_types(const rocblas_datatype a, rocblas_datatype b, rocblas_datatype c, rocblas_datatype d,
                   rocblas_datatype sums) {
  const bool is_bf16 = a == rocblas_datatype_bf16_r;
  const bool has_sums = sums == (is_bf16 ? rocblas_datatype_f32_r : a);
  const bool has_result = c == a || (is_bf16 && c == rocblas_datatype_f32_r);
  if (a != b || c != d || !has_sums || !has_result) fault("a GEMM of rocBLAS with types that it does not have");
}

hipDataType type_of(rocblas_datatype type) {
  return type == rocblas_datatype_f64_r ? HIP_R_64F : type == rocblas_datatype_f32_r ? HIP_R_32F : HIP_R_16BF;
}

// An operand as a call gives it.
struct Given {
  rocblas_datatype type;
  rocblas_int leading;
  bool transposes = false;

  Given(rocblas_datatype of, rocblas_int apart, rocblas_operation op = rocblas_operation_none)
      : type(of), leading(apart), transposes(op == rocblas_operation_transpose) {}
  // Of op(X) (rows, columns).
  Operand stored(rocblas_int rows, rocblas_int columns) const {
    return transposes ? Operand{type_of(type), columns, rows, leading} : Operand{type_of(type), rows, columns, leading};
  }
};

Gemm gemm_of(rocblas_int m, rocblas_int n, rocblas_int k, const void* alpha, const Given& a, const Given& b,
             const void* beta, const Given& c, const Given& d, rocblas_datatype compute_type) {
  require_types(a.type, b.type, c.type, d.type, compute_type);
  return {.transposes_a = a.transposes,
          .transposes_b = b.transposes,
          .m = m,
          .n = n,
          .k = k,
          .alpha = load(type_of(compute_type), alpha, 0),
          .beta = load(type_of(compute_type), beta, 0),
          .of_a = a.stored(m, k),
          .of_b = b.stored(k, n),
          .of_c = c.stored(m, n),
          .of_d = d.stored(m, n)};
}

Stream& queue_of(rocblas_handle handle) {
  if (handle->adds_in_any_order) fault("a GEMM of rocBLAS that may add in any order: rocblas_set_atomics_mode");
  return handle->stream == nullptr ? Scheduler::instance().default_stream()
                                   : *reinterpret_cast<Stream*>(handle->stream);
}

}  // namespace

extern "C" {

rocblas_status rocblas_create_handle(rocblas_handle* handle) {
  *handle = new _rocblas_handle;
  return rocblas_status_success;
}
rocblas_status rocblas_destroy_handle(rocblas_handle handle) {
  delete handle;
  return rocblas_status_success;
}
rocblas_status rocblas_set_stream(rocblas_handle handle, hipStream_t stream) {
  handle->stream = stream;
  return rocblas_status_success;
}
rocblas_status rocblas_set_workspace(rocblas_handle, void* memory, std::size_t bytes) {
  require_device(memory, bytes, "rocblas_set_workspace");
  return rocblas_status_success;
}
rocblas_status rocblas_set_atomics_mode(rocblas_handle handle, rocblas_atomics_mode mode) {
  handle->adds_in_any_order = mode != rocblas_atomics_not_allowed;
  return rocblas_status_success;
}
rocblas_status rocblas_get_version_string(char* text, std::size_t length) {
  std::snprintf(text, length, "emulated");
  return rocblas_status_success;
}

rocblas_status rocblas_gemm_ex(rocblas_handle handle, rocblas_operation op_a, rocblas_operation op_b, rocblas_int m,
                               rocblas_int n, rocblas_int k, const void* alpha, const void* a, rocblas_datatype a_type,
                               rocblas_int leading_a, const void* b, rocblas_datatype b_type, rocblas_int leading_b,
                               const void* beta, const void* c, rocblas_datatype c_type, rocblas_int leading_c, void* d,
                               rocblas_datatype d_type, rocblas_int leading_d, rocblas_datatype compute_type,
                               rocblas_gemm_algo, std::int32_t, std::uint32_t) {
  const Gemm gemm = gemm_of(m, n, k, alpha, {a_type, leading_a, op_a}, {b_type, leading_b, op_b}, beta,
                            {c_type, leading_c}, {d_type, leading_d}, compute_type);
  gemm.require(a, b, c, d);
  if (has_odd_rows(gemm)) ++gemms_of_odd_rows;
  Scheduler::instance().launch_kernel(queue_of(handle), "rocblas_gemm_ex", [=] { gemm(a, b, c, d); });
  return rocblas_status_success;
}

rocblas_status rocblas_gemm_batched_ex(rocblas_handle handle, rocblas_operation op_a, rocblas_operation op_b,
                                       rocblas_int m, rocblas_int n, rocblas_int k, const void* alpha, const void* a,
                                       rocblas_datatype a_type, rocblas_int leading_a, const void* b,
                                       rocblas_datatype b_type, rocblas_int leading_b, const void* beta, const void* c,
                                       rocblas_datatype c_type, rocblas_int leading_c, void* d, rocblas_datatype d_type,
                                       rocblas_int leading_d, rocblas_int count, rocblas_datatype compute_type,
                                       rocblas_gemm_algo, std::int32_t, std::uint32_t) {
  const auto pointers = [count](const void* array, const char* what) {
    require_device(array, static_cast<std::size_t>(count) * sizeof(void*), what);
    return static_cast<void* const*>(array);
  };
  const auto all_a = pointers(a, "the pointers to A of a batched GEMM");
  const auto all_b = pointers(b, "the pointers to B of a batched GEMM");
  const auto all_c = pointers(c, "the pointers to C of a batched GEMM");
  const auto all_d = pointers(d, "the pointers to D of a batched GEMM");
  const Gemm gemm = gemm_of(m, n, k, alpha, {a_type, leading_a, op_a}, {b_type, leading_b, op_b}, beta,
                            {c_type, leading_c}, {d_type, leading_d}, compute_type);
  Scheduler::instance().launch_kernel(queue_of(handle), "rocblas_gemm_batched_ex", [=] {
    for (int i = 0; i < count; ++i) gemm(all_a[i], all_b[i], all_c[i], all_d[i]);
  });
  return rocblas_status_success;
}

}  // extern "C"
