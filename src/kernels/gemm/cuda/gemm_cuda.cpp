// cuBLASLt for single GEMMs; cuBLAS for batched GEMMs with arrays of pointers.

#include <cublas_v2.h>

#include "kernels/gemm/lt/gemm_plans.hpp"

namespace nanotron {

// One per Device.
struct GemmHandles {
  GemmHandles() { NANOTRON_CHECK_CUBLAS(cublasCreate(&cublas)); }
  ~GemmHandles() { cublasDestroy(cublas); }
  GemmHandles(const GemmHandles&) = delete;
  GemmHandles& operator=(const GemmHandles&) = delete;

  cublasHandle_t cublas = nullptr;
  kernels::detail::GemmPlans plans;
};

namespace kernels {
namespace detail {
namespace {

GemmHandles& handles_of(const Device& device) {
  auto& handles = device.gemm_handles();
  if (handles == nullptr) handles = std::make_shared<GemmHandles>();
  return *handles;
}

}  // namespace

GemmPlans& gemm_plans(const Device& device) { return handles_of(device).plans; }

template <class T, class C>
void multiply_plus(Device& device, const GemmProblem& p, const T* a, const T* b, const C* d, C* c) {
  const bool has_run = multiply_by_plan(device, p, a, b, d, c);
  NANOTRON_REQUIRE(has_run, "cuBLASLt has no algorithm for a GEMM of {} x {} x {}", p.m, p.n, p.k);
}

// What cublasGemmBatchedEx demands of all pointers, in bytes; it cannot see them before it runs.
template <class T>
std::size_t batch_alignment(index_t k) {
  if constexpr (!std::is_same_v<T, bf16>) return 1;
  return k % 8 == 0 ? 16 : k % 2 == 0 ? 4 : 1;
}

template <class T, class C>
void multiply_batch(Device& device, const GemmProblem& s, std::size_t alignment, const T* const* a, const T* const* b,
                    C* const* c, index_t count) {
  if (alignment < batch_alignment<T>(s.k)) return multiply_batch_in_order<T, C>(device, s, a, b, c, count);
  const cublasHandle_t cublas = handles_of(device).cublas;
  const Workspace workspace = workspace_of(device);
  NANOTRON_CHECK_CUBLAS(cublasSetStream(cublas, device.exec().cuda_stream()));
  if (workspace.bytes > 0) {
    NANOTRON_CHECK_CUBLAS(cublasSetWorkspace(cublas, workspace.data, workspace.bytes));
  }
  const Factor alpha = factor<master_t<T>>(s.alpha), beta = factor<master_t<T>>(s.beta);
  NANOTRON_CHECK_CUBLAS(
      cublasGemmBatchedEx(cublas, lt::transpose(s.op_b), lt::transpose(s.op_a), static_cast<int>(s.n),
                          static_cast<int>(s.m), static_cast<int>(s.k), &alpha, reinterpret_cast<const void* const*>(b),
                          operand_type<T>.type, static_cast<int>(s.leading_b), reinterpret_cast<const void* const*>(a),
                          operand_type<T>.type, static_cast<int>(s.leading_a), &beta, reinterpret_cast<void* const*>(c),
                          operand_type<C>.type, static_cast<int>(s.leading_c), static_cast<int>(count),
                          std::is_same_v<T, double> ? lt::sums_in_fp64 : lt::sums_in_fp32, CUBLAS_GEMM_DEFAULT));
}
NANOTRON_FOR_GEMM_TYPES(NANOTRON_INSTANTIATE_LIBRARY_GEMM)

}  // namespace detail

template <class T>
const char* gemm_library() {
  return "cuBLASLt";
}
#define NANOTRON_INSTANTIATE(T) template const char* gemm_library<T>();
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace kernels
}  // namespace nanotron
