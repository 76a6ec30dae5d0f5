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

struct OperandTypes {
  cudaDataType_t a = CUDA_R_32F, b = CUDA_R_32F, c = CUDA_R_32F;
  bool operator==(const OperandTypes&) const = default;
};

// Of the pointers in cuBLASLt's names, C added to and D written, in bytes: powers of two of at most 16, which its fast
// kernels ask for. More would be another plan for another address, made in the middle of a step.
struct Alignments {
  std::uint32_t a = 16, b = 16, c = 16, d = 16;
  friend bool operator==(const Alignments&, const Alignments&) = default;
};
std::uint32_t alignment_of(const void* data);

inline cublasOperation_t operation_of(Op op) { return op == Op::none ? CUBLAS_OP_N : CUBLAS_OP_T; }
cublasComputeType_t compute_type(cudaDataType_t operands);

// What a plan depends on.
struct PlannedGemm {
  GemmProblem problem{};
  Alignments alignments{};
  OperandTypes types{};
  std::size_t workspace = 0;         // bytes
  std::int32_t multiprocessors = 0;  // of the GPU, for this GEMM; 0: all
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
}

}  // namespace nanotron
