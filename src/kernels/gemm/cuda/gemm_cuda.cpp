#include <cublasLt.h>
#include <cublas_v2.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/gemm/gemm_backend.hpp"
#include "nanotron/base/error.hpp"

// cuBLASLt for single GEMMs, with descriptors and the heuristic's algorithm cached by shape; cuBLAS
// for batched GEMMs with arrays of pointers. cuBLAS is column-major: the row-major C = op(A) op(B)
// is computed as C^T = op(B)^T op(A)^T, by exchanging the operands.

namespace nanotron {
namespace {

template <class T>
constexpr cudaDataType_t cuda_type = std::is_same_v<T, double>  ? CUDA_R_64F
                                     : std::is_same_v<T, float> ? CUDA_R_32F
                                     : std::is_same_v<T, e4m3>  ? CUDA_R_8F_E4M3
                                     : std::is_same_v<T, e5m2>  ? CUDA_R_8F_E5M2
                                                                : CUDA_R_16BF;

struct OperandTypes {
  cudaDataType_t a = CUDA_R_32F, b = CUDA_R_32F, c = CUDA_R_32F;
  bool operator==(const OperandTypes&) const = default;
};

cublasOperation_t operation(kernels::Op op) {
  return op == kernels::Op::none ? CUBLAS_OP_N : CUBLAS_OP_T;
}

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

// Of the pointers in cuBLASLt's names, C added to and D written, in bytes: powers of two of at most 256, what cuBLASLt
// assumes unless it is told.
struct Alignments {
  std::uint32_t a = 256, b = 256, c = 256, d = 256;
  friend bool operator==(const Alignments&, const Alignments&) = default;
};

std::uint32_t alignment_of(const void* data) {
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  return static_cast<std::uint32_t>(std::min<std::uintptr_t>(256, address & (~address + 1)));
}

}  // namespace

// One per Device: the library handles and the cached plans.
struct GemmHandles {
  struct Plan {
    kernels::detail::GemmProblem problem;
    Alignments alignments;
    OperandTypes types;
    std::size_t workspace = 0;  // bytes that the algorithm was chosen for
    cublasLtMatmulDesc_t operation = nullptr;
    cublasLtMatrixLayout_t a = nullptr, b = nullptr, c = nullptr;
    cublasLtMatmulAlgo_t algorithm{};

    Plan() = default;
    Plan(const Plan&) = delete;
    Plan& operator=(const Plan&) = delete;
    ~Plan() {
      if (c != nullptr) cublasLtMatrixLayoutDestroy(c);
      if (b != nullptr) cublasLtMatrixLayoutDestroy(b);
      if (a != nullptr) cublasLtMatrixLayoutDestroy(a);
      if (operation != nullptr) cublasLtMatmulDescDestroy(operation);
    }
  };

  GemmHandles() {
    NANOTRON_CHECK_CUBLAS(cublasLtCreate(&lt));
    NANOTRON_CHECK_CUBLAS(cublasCreate(&cublas));
  }
  ~GemmHandles() {
    plans.clear();
    cublasDestroy(cublas);
    cublasLtDestroy(lt);
  }
  GemmHandles(const GemmHandles&) = delete;
  GemmHandles& operator=(const GemmHandles&) = delete;

  cublasLtHandle_t lt = nullptr;
  cublasHandle_t cublas = nullptr;
  std::vector<std::unique_ptr<Plan>> plans;
};

namespace kernels {
namespace detail {
namespace {

GemmHandles& handles(Device& device) {
  auto& gemms = device.gemm_handles();
  if (gemms == nullptr) gemms = std::make_shared<GemmHandles>();
  return *gemms;
}

cublasComputeType_t compute_type(cudaDataType_t operands) {
  return operands == CUDA_R_64F ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F;  // never TF32
}

// The stored matrix X, seen column-major, where op(X) is (rows, columns) and rows of X are `leading` apart.
cublasLtMatrixLayout_t layout(cudaDataType_t type, Op op, index_t rows, index_t columns,
                              index_t leading) {
  if (op == Op::transpose) std::swap(rows, columns);
  cublasLtMatrixLayout_t made = nullptr;
  NANOTRON_CHECK_CUBLAS(cublasLtMatrixLayoutCreate(&made, type, static_cast<std::uint64_t>(columns),
                                                   static_cast<std::uint64_t>(rows), leading));
  return made;
}

void choose_algorithm(GemmHandles& all, GemmHandles::Plan& plan) {
  cublasLtMatmulPreference_t preference = nullptr;
  NANOTRON_CHECK_CUBLAS(cublasLtMatmulPreferenceCreate(&preference));
  NANOTRON_CHECK_CUBLAS(
      cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                           &plan.workspace, sizeof plan.workspace));
  const std::array<std::pair<cublasLtMatmulPreferenceAttributes_t, std::uint32_t>, 5> more{
      {{CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, plan.alignments.a},
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, plan.alignments.b},
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, plan.alignments.c},
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, plan.alignments.d},
       // Parts of a sum over k are added in the accumulation type and rounded once.
       {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE}}};
  for (const auto& [attribute, value] : more) {
    NANOTRON_CHECK_CUBLAS(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value));
  }
  cublasLtMatmulHeuristicResult_t found{};
  int count = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      all.lt, plan.operation, plan.a, plan.b, plan.c, plan.c, preference, 1, &found, &count);
  cublasLtMatmulPreferenceDestroy(preference);
  NANOTRON_CHECK_CUBLAS(status);
  NANOTRON_REQUIRE(count > 0, "cuBLASLt has no algorithm for a GEMM of {} x {} x {}", plan.problem.m, plan.problem.n,
                   plan.problem.k);
  plan.algorithm = found.algo;
}

GemmHandles::Plan& plan_of(GemmHandles& all, const GemmProblem& p, const Alignments& alignments,
                           const OperandTypes& types, std::size_t workspace) {
  for (const auto& plan : all.plans) {
    if (plan->problem == p && plan->alignments == alignments && plan->types == types && plan->workspace == workspace) {
      return *plan;
    }
  }
  auto plan = std::make_unique<GemmHandles::Plan>();
  plan->problem = p;
  plan->alignments = alignments;
  plan->types = types;
  plan->workspace = workspace;
  const cudaDataType_t scale = types.a == CUDA_R_64F ? CUDA_R_64F : CUDA_R_32F;
  NANOTRON_CHECK_CUBLAS(cublasLtMatmulDescCreate(&plan->operation, compute_type(types.a), scale));
  const cublasOperation_t first = operation(p.op_b), second = operation(p.op_a);
  NANOTRON_CHECK_CUBLAS(cublasLtMatmulDescSetAttribute(plan->operation, CUBLASLT_MATMUL_DESC_TRANSA,
                                                       &first, sizeof first));
  NANOTRON_CHECK_CUBLAS(cublasLtMatmulDescSetAttribute(plan->operation, CUBLASLT_MATMUL_DESC_TRANSB,
                                                       &second, sizeof second));
  if (types.a == CUDA_R_8F_E4M3) {
    const std::int8_t fast = 1;
    NANOTRON_CHECK_CUBLAS(
        cublasLtMatmulDescSetAttribute(plan->operation, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof fast));
  }
  plan->a = layout(types.b, p.op_b, p.k, p.n, p.leading_b);
  plan->b = layout(types.a, p.op_a, p.m, p.k, p.leading_a);
  plan->c = layout(types.c, Op::none, p.m, p.n, p.leading_c);
  choose_algorithm(all, *plan);
  all.plans.push_back(std::move(plan));
  return *all.plans.back();
}

}  // namespace

namespace {

template <class T, class C>
void multiply_plus(Device& device, const GemmProblem& p, const T* a, const T* b, const C* d, C* c) {
  GemmHandles& all = handles(device);
  const auto& workspace = device.gemm_workspace();
  const Alignments alignments{alignment_of(b), alignment_of(a), alignment_of(d),
                              alignment_of(c)};  // column-major: operands change places
  const GemmHandles::Plan& plan =
      plan_of(all, p, alignments, {cuda_type<T>, cuda_type<T>, cuda_type<C>}, workspace.extent(0));
  const Factor alpha = factor<master_t<T>>(p.alpha), beta = factor<master_t<T>>(p.beta);
  NANOTRON_CHECK_CUBLAS(cublasLtMatmul(all.lt, plan.operation, &alpha, b, plan.a, a, plan.b, &beta, d, plan.c, c,
                                       plan.c, &plan.algorithm, workspace.data(), workspace.extent(0),
                                       device.exec().cuda_stream()));
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
  GemmHandles& all = handles(device);
  const auto& workspace = device.gemm_workspace();
  const GemmHandles::Plan& plan = plan_of(all, p, {alignment_of(b), alignment_of(a), alignment_of(d), alignment_of(c)},
                                          {cuda_type<A>, cuda_type<e4m3>, cuda_type<C>}, workspace.extent(0));
  const std::array<std::pair<cublasLtMatmulDescAttributes_t, const float*>, 2> scales{
      {{CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, scale_b}, {CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, scale_a}}};
  for (const auto& [attribute, scale] : scales) {
    NANOTRON_CHECK_CUBLAS(cublasLtMatmulDescSetAttribute(plan.operation, attribute, &scale, sizeof scale));
  }
  const Factor alpha = factor<float>(p.alpha), beta = factor<float>(p.beta);
  NANOTRON_CHECK_CUBLAS(cublasLtMatmul(all.lt, plan.operation, &alpha, b, plan.a, a, plan.b, &beta, d, plan.c, c,
                                       plan.c, &plan.algorithm, workspace.data(), workspace.extent(0),
                                       device.exec().cuda_stream()));
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
  GemmHandles& all = handles(device);
  const auto& workspace = device.gemm_workspace();
  NANOTRON_CHECK_CUBLAS(cublasSetStream(all.cublas, device.exec().cuda_stream()));
  if (workspace.extent(0) > 0) {
    NANOTRON_CHECK_CUBLAS(cublasSetWorkspace(all.cublas, workspace.data(), workspace.extent(0)));
  }
  const Factor alpha = factor<master_t<T>>(s.alpha), beta = factor<master_t<T>>(s.beta);
  NANOTRON_CHECK_CUBLAS(cublasGemmBatchedEx(
      all.cublas, operation(s.op_b), operation(s.op_a), static_cast<int>(s.n),
      static_cast<int>(s.m), static_cast<int>(s.k), &alpha, reinterpret_cast<const void* const*>(b),
      cuda_type<T>, static_cast<int>(s.leading_b), reinterpret_cast<const void* const*>(a),
      cuda_type<T>, static_cast<int>(s.leading_a), &beta, reinterpret_cast<void* const*>(c),
      cuda_type<C>, static_cast<int>(s.leading_c), static_cast<int>(count),
      compute_type(cuda_type<T>), CUBLAS_GEMM_DEFAULT));
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
