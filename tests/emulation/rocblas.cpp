// The functions of rocBLAS that the program calls, as queued work of an emulated GPU. Column-major, like theirs.
#include <fmt/format.h>
#include <rocblas/rocblas.h>

#include <cstdio>
#include <cstring>

#include "emulation/device_memory.hpp"
#include "emulation/gemms.hpp"
#include "emulation/scheduler.hpp"
#include "nanotron/base/types.hpp"

using namespace nanotron::emulation;

struct _rocblas_handle {
  hipStream_t stream = nullptr;
  bool adds_in_any_order = true;  // rocBLAS' default
};

namespace {

std::size_t size_of(rocblas_datatype type) {
  return type == rocblas_datatype_f64_r ? 8 : type == rocblas_datatype_f32_r ? 4 : 2;
}

double load(rocblas_datatype type, const void* data, std::size_t i) {
  if (type == rocblas_datatype_f64_r) return static_cast<const double*>(data)[i];
  if (type == rocblas_datatype_f32_r) return static_cast<const float*>(data)[i];
  return static_cast<float>(static_cast<const nanotron::bf16*>(data)[i]);
}

void store(rocblas_datatype type, void* data, std::size_t i, double value) {
  if (type == rocblas_datatype_f64_r) {
    static_cast<double*>(data)[i] = value;
  } else if (type == rocblas_datatype_f32_r) {
    static_cast<float*>(data)[i] = static_cast<float>(value);
  } else {
    static_cast<nanotron::bf16*>(data)[i] = nanotron::bf16(static_cast<float>(value));
  }
}

struct Operand {
  rocblas_datatype type;
  std::int64_t rows, columns, leading;

  void require(const void* data, const char* name) const {
    if (leading < rows) fault(fmt::format("a GEMM of rocBLAS: {} of {} rows is {} apart", name, rows, leading));
    require_device(data, static_cast<std::size_t>((columns - 1) * leading + rows) * size_of(type), name);
  }
};

// D (m, n) <- alpha op(A) op(B) + beta C, sums in fp64.
struct Gemm {
  bool transposes_a, transposes_b;
  std::int64_t m, n, k;
  double alpha, beta;
  Operand of_a, of_b, of_c, of_d;

  void operator()(const void* a, const void* b, const void* c, void* d) const {
    require(a, b, c, d);
    for (std::int64_t j = 0; j < n; ++j) {
      for (std::int64_t i = 0; i < m; ++i) {
        double sum = 0;
        for (std::int64_t l = 0; l < k; ++l) {
          const auto at_a = static_cast<std::size_t>(transposes_a ? l + i * of_a.leading : i + l * of_a.leading);
          const auto at_b = static_cast<std::size_t>(transposes_b ? j + l * of_b.leading : l + j * of_b.leading);
          sum += load(of_a.type, a, at_a) * load(of_b.type, b, at_b);
        }
        const auto at_c = static_cast<std::size_t>(i + j * of_c.leading);
        const double added = beta == 0 ? 0 : beta * load(of_c.type, c, at_c);
        store(of_d.type, d, static_cast<std::size_t>(i + j * of_d.leading), alpha * sum + added);
      }
    }
  }
  void require(const void* a, const void* b, const void* c, const void* d) const {
    of_a.require(a, "A of a GEMM");
    of_b.require(b, "B of a GEMM");
    of_c.require(c, "C of a GEMM");
    of_d.require(d, "D of a GEMM");
  }
};

// The types that rocblas_gemm_ex lists: sums of bf16 in fp32, the result in either.
void require_types(const rocblas_datatype a, rocblas_datatype b, rocblas_datatype c, rocblas_datatype d,
                   rocblas_datatype sums) {
  const bool is_bf16 = a == rocblas_datatype_bf16_r;
  const bool has_sums = sums == (is_bf16 ? rocblas_datatype_f32_r : a);
  const bool has_result = c == a || (is_bf16 && c == rocblas_datatype_f32_r);
  if (a != b || c != d || !has_sums || !has_result) fault("a GEMM of rocBLAS with types that it does not have");
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
    return transposes ? Operand{type, columns, rows, leading} : Operand{type, rows, columns, leading};
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
          .alpha = load(compute_type, alpha, 0),
          .beta = load(compute_type, beta, 0),
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
  const auto is_odd = [](const Operand& x) { return static_cast<std::size_t>(x.leading) * size_of(x.type) % 16 != 0; };
  if (a_type == rocblas_datatype_bf16_r && (is_odd(gemm.of_a) || is_odd(gemm.of_b) || is_odd(gemm.of_d)))
    ++gemms_of_odd_rows;
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
