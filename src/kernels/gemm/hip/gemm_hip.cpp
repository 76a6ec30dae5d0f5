// hipBLASLt for single GEMMs in fp32 and bf16, where the build and the library have them: hipBLASLt 1.1 has none that
// multiplies bf16 and writes fp32 on MI250X. rocBLAS for the others and for batched GEMMs with arrays of pointers; it
// is column-major: the row-major C = op(A) op(B) is computed as C^T = op(B)^T op(A)^T, by exchanging the operands.

#include <rocblas/rocblas.h>

#ifdef NANOTRON_WITH_HIPBLASLT
#include "kernels/gemm/lt/gemm_plans.hpp"
#endif
#include "kernels/gemm/gemm_backend.hpp"
#include "nanotron/base/gpu_api.hpp"
#include "nanotron/kernels/gemm/gemm_algorithms.hpp"

namespace nanotron {

// One per Device.
struct GemmHandles {
  GemmHandles() {
    NANOTRON_CHECK_ROCBLAS(rocblas_create_handle(&rocblas));
    // Parts of a sum over k are then added in one order, in every run. rocBLAS 6.4 says by its attribute that a later
    // one will do so unasked.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
    NANOTRON_CHECK_ROCBLAS(rocblas_set_atomics_mode(rocblas, rocblas_atomics_not_allowed));
#pragma GCC diagnostic pop
  }
  ~GemmHandles() { static_cast<void>(rocblas_destroy_handle(rocblas)); }
  GemmHandles(const GemmHandles&) = delete;
  GemmHandles& operator=(const GemmHandles&) = delete;

  rocblas_handle rocblas = nullptr;
#ifdef NANOTRON_WITH_HIPBLASLT
  kernels::detail::GemmPlans plans;
#endif
};

namespace kernels {
namespace detail {
namespace {

template <class T>
constexpr rocblas_datatype type_of = std::is_same_v<T, double>  ? rocblas_datatype_f64_r
                                     : std::is_same_v<T, float> ? rocblas_datatype_f32_r
                                                                : rocblas_datatype_bf16_r;

rocblas_operation operation_of(Op op) { return op == Op::none ? rocblas_operation_none : rocblas_operation_transpose; }

GemmHandles& handles_of(const Device& device) {
  auto& handles = device.gemm_handles();
  if (!handles) handles = std::make_shared<GemmHandles>();
  return *handles;
}

// On the device's stream and in its workspace, so that rocBLAS allocates none in a step.
rocblas_handle handle_of(const Device& device) {
  const rocblas_handle handle = handles_of(device).rocblas;
  NANOTRON_CHECK_ROCBLAS(rocblas_set_stream(handle, gpu_stream(device.exec())));
  const Vector<std::byte>& workspace = device.gemm_workspace();
  if (workspace.extent(0) > 0) {
    NANOTRON_CHECK_ROCBLAS(rocblas_set_workspace(handle, workspace.data(), workspace.extent(0)));
  }
  return handle;
}

rocblas_int narrow(index_t extent) {
  NANOTRON_REQUIRE(extent <= std::numeric_limits<rocblas_int>::max(), "a GEMM with an extent of {}", extent);
  return static_cast<rocblas_int>(extent);
}

}  // namespace

#ifdef NANOTRON_WITH_HIPBLASLT
GemmPlans& gemm_plans(const Device& device) { return handles_of(device).plans; }
#else
template <class T, class C>
bool multiply_by_plan(Device&, const GemmProblem&, const T*, const T*, const C*, C*) {
  return false;
}
#endif

// D and C are the operands of rocblas_gemm_ex with these names exchanged: there C is added and D is written.
template <class T, class C>
void multiply_plus(Device& device, const GemmProblem& p, const T* a, const T* b, const C* d, C* c) {
  using M = master_t<T>;
  if constexpr (!std::is_same_v<T, double>) {
    if (multiply_by_plan(device, p, a, b, d, c)) return;
  }
  const M alpha = static_cast<M>(p.alpha), beta = static_cast<M>(p.beta);
  NANOTRON_CHECK_ROCBLAS(rocblas_gemm_ex(
      handle_of(device), operation_of(p.op_b), operation_of(p.op_a), narrow(p.n), narrow(p.m), narrow(p.k), &alpha, b,
      type_of<T>, narrow(p.leading_b), a, type_of<T>, narrow(p.leading_a), &beta, d, type_of<C>, narrow(p.leading_c), c,
      type_of<C>, narrow(p.leading_c), type_of<M>, rocblas_gemm_algo_standard, 0, rocblas_gemm_flags_none));
}

template <class T, class C>
void multiply_batch(Device& device, const GemmProblem& p, std::size_t, const T* const* a, const T* const* b,
                    C* const* c, index_t count) {
  using M = master_t<T>;
  const M alpha = static_cast<M>(p.alpha), beta = static_cast<M>(p.beta);
  NANOTRON_CHECK_ROCBLAS(rocblas_gemm_batched_ex(
      handle_of(device), operation_of(p.op_b), operation_of(p.op_a), narrow(p.n), narrow(p.m), narrow(p.k), &alpha, b,
      type_of<T>, narrow(p.leading_b), a, type_of<T>, narrow(p.leading_a), &beta, c, type_of<C>, narrow(p.leading_c),
      const_cast<C**>(c), type_of<C>, narrow(p.leading_c), narrow(count), type_of<M>, rocblas_gemm_algo_standard, 0,
      rocblas_gemm_flags_none));
}
NANOTRON_FOR_GEMM_TYPES(NANOTRON_INSTANTIATE_LIBRARY_GEMM)

}  // namespace detail

template <class T>
const char* gemm_library() {
#ifdef NANOTRON_WITH_HIPBLASLT
  if constexpr (!std::is_same_v<T, double>) return "hipBLASLt, rocBLAS";
#endif
  return "rocBLAS";
}
#define NANOTRON_INSTANTIATE(T) template const char* gemm_library<T>();
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

#ifndef NANOTRON_WITH_HIPBLASLT
void use_gemm_algorithms(Device&, const GemmAlgorithms&, const std::string& file) {
  fail(ExitCode::deck_error, {.what = "rocBLAS takes no file of GEMM algorithms",
                              .expected = "run%gemm_algorithms = ''",
                              .found = file,
                              .where = "run%gemm_algorithms",
                              .change = "leave the key out: rocBLAS chooses its kernels itself"});
}

// rocBLAS has no such share.
void leave_multiprocessors(Device&, int) {}

void measure_gemm_algorithms(Device&) {
  fail(ExitCode::deck_error, {.what = "there are no GEMM algorithms to measure",
                              .expected = "a build with cuBLASLt or hipBLASLt",
                              .found = "rocBLAS, which chooses its kernels itself",
                              .where = "nanotron_bench --gemm-algorithms",
                              .change = "leave it out"});
}

GemmAlgorithms measured_gemm_algorithms(const Device&) { return {}; }

GemmAlgorithmCounts gemm_algorithm_counts(const Device&) { return {}; }
#endif

}  // namespace kernels
}  // namespace nanotron
