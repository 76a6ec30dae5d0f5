#pragma once

// What cuBLASLt needs to run a GEMM, made at the first run of each: descriptors and an algorithm. cuBLAS is
// column-major: the row-major C = op(A) op(B) is computed as C^T = op(B)^T op(A)^T, by exchanging the operands.

#include <cublasLt.h>
#include <cublas_v2.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "kernels/gemm/gemm_backend.hpp"
#include "nanotron/kernels/gemm/gemm_algorithms.hpp"

namespace nanotron {

namespace kernels::detail {

struct OperandType {
  cudaDataType_t type = CUDA_R_32F;
  const char* name = "fp32";  // in a file of algorithms
  bool operator==(const OperandType& other) const { return type == other.type; }
};
template <class T>
constexpr OperandType operand_type{std::is_same_v<T, double>  ? CUDA_R_64F
                                   : std::is_same_v<T, float> ? CUDA_R_32F
                                                              : CUDA_R_16BF,
                                   name_of(scalar_type_of<T>)};

struct OperandTypes {
  OperandType a{}, b{}, c{};
  bool operator==(const OperandTypes&) const = default;
};

// Of the pointers in cuBLASLt's names, C added to and D written, in bytes: powers of two of at most 16, which its fast
// kernels ask for. More would be another plan for another address, made in the middle of a step.
struct Alignments {
  std::uint32_t a = 16, b = 16, c = 16, d = 16;
  friend bool operator==(const Alignments&, const Alignments&) = default;
};

inline cublasOperation_t operation_of(Op op) { return op == Op::none ? CUBLAS_OP_N : CUBLAS_OP_T; }
cublasComputeType_t compute_type(cudaDataType_t operands);

// cublasLtMatmulMatrixScale_t of cuBLASLt's A and B. 0: one scale of an operand.
struct ScaleModes {
  std::int32_t a = 0, b = 0;
  friend bool operator==(const ScaleModes&, const ScaleModes&) = default;
};

// What a plan depends on.
struct PlannedGemm {
  GemmProblem problem{};
  Alignments alignments{};
  OperandTypes types{};
  std::size_t workspace = 0;          // bytes
  std::int32_t multiprocessors = 0;   // of the GPU, for this GEMM; 0: all
  std::int8_t fast_accumulation = 0;  // 1: sums stay in the tensor cores' accumulator, of fewer bits than fp32
  ScaleModes scale_modes{};
  friend bool operator==(const PlannedGemm&, const PlannedGemm&) = default;
};

struct GemmPlan {
  PlannedGemm gemm{};
  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, c = nullptr;
  cublasLtMatmulAlgo_t algorithm{};

  explicit GemmPlan(const PlannedGemm& of);
  GemmPlan(const GemmPlan&) = delete;
  GemmPlan& operator=(const GemmPlan&) = delete;
  ~GemmPlan();
};

// Runs the GEMM of a plan, with its algorithm.
using RunGemm = std::function<void(const GemmPlan&)>;

}  // namespace kernels::detail

// One per Device: the library handles, the plans, and what chooses their algorithms.
struct GemmHandles {
  GemmHandles();
  ~GemmHandles();
  GemmHandles(const GemmHandles&) = delete;
  GemmHandles& operator=(const GemmHandles&) = delete;

  /// Null before make_plan. run: for measuring; it is not kept.
  const kernels::detail::GemmPlan* plan_of(const kernels::detail::PlannedGemm& gemm) const;
  const kernels::detail::GemmPlan& make_plan(const kernels::detail::PlannedGemm& gemm, cudaStream_t stream,
                                             const kernels::detail::RunGemm& run);
  /// From now on these, for all GEMMs.
  void use(const kernels::GemmAlgorithms& given);

  cublasLtHandle_t lt = nullptr;
  cublasHandle_t cublas = nullptr;
  std::int32_t multiprocessors = 0;  // for GEMMs from now on, as PlannedGemm
  enum class Source { heuristic, measured } source = Source::heuristic;
  kernels::GemmAlgorithms algorithms;  // given, or measured so far
  kernels::GemmAlgorithmCounts counts;

 private:
  // Named: nvcc 13 ends with an internal error at a vector of a struct that has but a typedef.
  struct Candidate {
    cublasLtMatmulAlgo_t algorithm;
  };
  std::vector<Candidate> candidates(const kernels::detail::GemmPlan& plan, int most) const;
  bool give_algorithm(kernels::detail::GemmPlan& plan, const std::string& name) const;
  void measure(kernels::detail::GemmPlan& plan, const std::string& name, cudaStream_t stream,
               const kernels::detail::RunGemm& run);

  struct Hash {
    std::size_t operator()(const kernels::detail::PlannedGemm& gemm) const;
  };
  std::unordered_map<kernels::detail::PlannedGemm, std::unique_ptr<kernels::detail::GemmPlan>, Hash> plans_;
};

namespace kernels::detail {
GemmHandles& gemm_handles(const Device& device);

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

// The part of the device's workspace that cuBLAS takes: its start must be a multiple of 256 bytes (cuBLASLt 13.1
// refuses others with invalid value), which that of an allocation of Kokkos is not, behind its header of 128.
struct Workspace {
  std::byte* data = nullptr;
  std::size_t bytes = 0;
};
Workspace workspace_of(const Device& device);

// C = alpha op(A) op(B) + beta D on the device's stream, with its workspace.
PlannedGemm planned(const Device& device, const GemmProblem& p, const OperandTypes& types, const void* a, const void* b,
                    const void* d, const void* c);
void run(Device& device, const GemmPlan& plan, const Factor& alpha, const Factor& beta, const void* a, const void* b,
         const void* d, void* c);
// run_plan(plan) launches the GEMM.
template <class F>
void run_planned(Device& device, const PlannedGemm& gemm, const F& run_plan) {
  GemmHandles& all = gemm_handles(device);
  const GemmPlan* plan = all.plan_of(gemm);
  run_plan(plan != nullptr ? *plan : all.make_plan(gemm, device.exec().cuda_stream(), run_plan));
}

}  // namespace kernels::detail

}  // namespace nanotron
