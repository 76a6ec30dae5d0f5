#include <array>
#include <utility>

#include "kernels/gemm/cuda/gemm_plans.hpp"
#include "nanotron/base/error.hpp"

// cuBLASLt for single GEMMs; cuBLAS for batched GEMMs with arrays of pointers.

namespace nanotron {
namespace {

template <class T>
constexpr cudaDataType_t cuda_type = std::is_same_v<T, double>  ? CUDA_R_64F
                                     : std::is_same_v<T, float> ? CUDA_R_32F
                                     : std::is_same_v<T, e4m3>  ? CUDA_R_8F_E4M3
                                     : std::is_same_v<T, e5m2>  ? CUDA_R_8F_E5M2
                                                                : CUDA_R_16BF;

// alpha or beta in the accumulation type.
union Factor {
  double wide;
  float narrow;
};
template <class M>
Factor factor(double value) {
  Factor f{};
  if constexpr (std::is_same_v<M, double>)
    f.wide = value;
  else
    f.narrow = static_cast<float>(value);
  return f;
}

}  // namespace

namespace kernels {
namespace detail {
namespace {

void run(Device& device, const GemmPlan& plan, const Factor& alpha, const Factor& beta, const void* a, const void* b,
         const void* d, void* c) {
  const auto& workspace = device.gemm_workspace();
  NANOTRON_CHECK_CUBLAS(cublasLtMatmul(gemm_handles(device).lt, plan.operation, &alpha, b, plan.a, a, plan.b, &beta, d,
                                       plan.c, c, plan.c, &plan.algorithm, workspace.data(), workspace.extent(0),
                                       device.exec().cuda_stream()));
}

PlannedGemm planned(const Device& device, const GemmProblem& p, const OperandTypes& types, const void* a, const void* b,
                    const void* d, const void* c) {
  return {.problem = p,
          .alignments = {alignment_of(b), alignment_of(a), alignment_of(d), alignment_of(c)},  // exchanged
          .types = types,
          .workspace = device.gemm_workspace().extent(0),
          .multiprocessors = gemm_handles(device).multiprocessors};
}

// run_plan(plan) launches the GEMM.
template <class F>
void run_planned(Device& device, const PlannedGemm& gemm, const F& run_plan) {
  GemmHandles& all = gemm_handles(device);
  const GemmPlan* plan = all.plan_of(gemm);
  run_plan(plan != nullptr ? *plan : all.make_plan(gemm, device.exec().cuda_stream(), run_plan));
}

template <class T, class C>
void multiply_plus(Device& device, const GemmProblem& p, const T* a, const T* b, const C* d, C* c) {
  const Factor alpha = factor<master_t<T>>(p.alpha), beta = factor<master_t<T>>(p.beta);
  run_planned(device, planned(device, p, {cuda_type<T>, cuda_type<T>, cuda_type<C>}, a, b, d, c),
              [&](const GemmPlan& plan) { run(device, plan, alpha, beta, a, b, d, c); });
}

}  // namespace

template <class T, class C>
void multiply(Device& device, const GemmProblem& p, const T* a, const T* b, C* c) {
  multiply_plus<T, C>(device, p, a, b, c, c);
}

template <class T>
void multiply_add(Device& device, const GemmProblem& p, const T* a, const T* b, const T* d, T* c) {
  multiply_plus<T, T>(device, p, a, b, d, c);
}
#define NANOTRON_INSTANTIATE(T) \
  template void multiply_add<T>(Device&, const GemmProblem&, const T*, const T*, const T*, T*);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

// Forward (e4m3 e4m3) sums in the accumulator of the tensor cores, of fewer bits than fp32; sums of gradients are moved
// to fp32 at intervals (Liu et al. 2024, "DeepSeek-V3", section 3.3.2), as in NVIDIA's Transformer Engine.
template <class A, class C>
void multiply_fp8(Device& device, const GemmProblem& p, const A* a, const float* scale_a, const e4m3* b,
                  const float* scale_b, const C* d, C* c) {
  const Factor alpha = factor<float>(p.alpha), beta = factor<float>(p.beta);
  run_planned(
      device, planned(device, p, {cuda_type<A>, cuda_type<e4m3>, cuda_type<C>}, a, b, d, c), [&](const GemmPlan& plan) {
        const std::array<std::pair<cublasLtMatmulDescAttributes_t, const float*>, 2> scales{
            {{CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, scale_b}, {CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, scale_a}}};
        for (const auto& [attribute, scale] : scales) {
          NANOTRON_CHECK_CUBLAS(cublasLtMatmulDescSetAttribute(plan.operation, attribute, &scale, sizeof scale));
        }
        run(device, plan, alpha, beta, a, b, d, c);
      });
}
#define NANOTRON_INSTANTIATE(A, C)                                                                                 \
  template void multiply_fp8<A, C>(Device&, const GemmProblem&, const A*, const float*, const e4m3*, const float*, \
                                   const C*, C*);
NANOTRON_INSTANTIATE(e4m3, bf16)
NANOTRON_INSTANTIATE(e5m2, bf16)
NANOTRON_INSTANTIATE(e5m2, float)
#undef NANOTRON_INSTANTIATE

PeakShape peak_shape() { return {.smallest = 256, .largest = 8192, .per_fence = 16}; }

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
  GemmHandles& all = gemm_handles(device);
  const auto& workspace = device.gemm_workspace();
  NANOTRON_CHECK_CUBLAS(cublasSetStream(all.cublas, device.exec().cuda_stream()));
  if (workspace.extent(0) > 0) {
    NANOTRON_CHECK_CUBLAS(cublasSetWorkspace(all.cublas, workspace.data(), workspace.extent(0)));
  }
  const Factor alpha = factor<master_t<T>>(s.alpha), beta = factor<master_t<T>>(s.beta);
  NANOTRON_CHECK_CUBLAS(cublasGemmBatchedEx(
      all.cublas, operation_of(s.op_b), operation_of(s.op_a), static_cast<int>(s.n), static_cast<int>(s.m),
      static_cast<int>(s.k), &alpha, reinterpret_cast<const void* const*>(b), cuda_type<T>,
      static_cast<int>(s.leading_b), reinterpret_cast<const void* const*>(a), cuda_type<T>,
      static_cast<int>(s.leading_a), &beta, reinterpret_cast<void* const*>(c), cuda_type<C>,
      static_cast<int>(s.leading_c), static_cast<int>(count), compute_type(cuda_type<T>), CUBLAS_GEMM_DEFAULT));
}
NANOTRON_FOR_GEMM_TYPES(NANOTRON_INSTANTIATE_LIBRARY_GEMM)

}  // namespace detail

template <class T>
const char* gemm_library() {
  return "cuBLASLt";
}
template const char* gemm_library<double>();
template const char* gemm_library<float>();
template const char* gemm_library<bf16>();

}  // namespace kernels
}  // namespace nanotron
