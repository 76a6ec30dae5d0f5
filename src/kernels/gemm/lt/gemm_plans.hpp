#pragma once

// What the library needs to run a GEMM, made at the first run of each: descriptors and an algorithm. It is
// column-major: the row-major C = op(A) op(B) is computed as C^T = op(B)^T op(A)^T, by exchanging the operands.

#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "kernels/gemm/gemm_backend.hpp"
#include "kernels/gemm/lt/library.hpp"
#include "nanotron/base/gpu_api.hpp"
#include "nanotron/kernels/gemm/gemm_algorithms.hpp"

namespace nanotron::kernels::detail {

struct OperandType {
  lt::DataType type = lt::type_of<float>;
  const char* name = "fp32";  // in a file of algorithms
  bool operator==(const OperandType& other) const { return type == other.type; }
};
template <class T>
constexpr OperandType operand_type{lt::type_of<T>, name_of(scalar_type_of<T>)};

struct OperandTypes {
  OperandType a{}, b{}, c{};
  bool operator==(const OperandTypes&) const = default;
};

// Of the pointers in the library's names, C added to and D written, in bytes: powers of two of at most 16, which its
// fast kernels ask for. More would be another plan for another address, made in the middle of a step.
struct Alignments {
  std::uint32_t a = 16, b = 16, c = 16, d = 16;
  friend bool operator==(const Alignments&, const Alignments&) = default;
};

// The library's numbers for what a scale of A or B is for. 0: one scale of an operand.
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
  lt::Operation operation = nullptr;
  lt::Layout a = nullptr, b = nullptr, c = nullptr;
  lt::Algorithm algorithm{};
  bool has_algorithm = false;  // the library may have none

  explicit GemmPlan(const PlannedGemm& of);
  GemmPlan(const GemmPlan&) = delete;
  GemmPlan& operator=(const GemmPlan&) = delete;
  ~GemmPlan();
};

// What a GEMM does with a plan: states operands that its algorithm depends on, and runs, with the algorithm.
struct PlanUser {
  std::function<void(const GemmPlan&)> state_operands, run;
};

// What chooses the algorithms of a Device's GEMMs.
class GemmPlans {
 public:
  GemmPlans() { NANOTRON_CHECK_LT(lt::create(&handle_)); }
  ~GemmPlans() {
    plans_.clear();
    lt::destroy(handle_);
  }
  GemmPlans(const GemmPlans&) = delete;
  GemmPlans& operator=(const GemmPlans&) = delete;

  lt::Handle handle() const { return handle_; }
  /// Null before make.
  const GemmPlan* find(const PlannedGemm& gemm) const;
  /// user.run: for measuring. The user is not kept.
  const GemmPlan& make(const PlannedGemm& gemm, gpuStream_t stream, const PlanUser& user);
  /// From now on these, for all GEMMs.
  void use(const GemmAlgorithms& given);

  std::int32_t multiprocessors = 0;  // for GEMMs from now on, as PlannedGemm
  enum class Source { heuristic, measured } source = Source::heuristic;
  GemmAlgorithms algorithms;  // given, or measured so far
  GemmAlgorithmCounts counts;

 private:
  // Named: nvcc 13 ends with an internal error at a vector of a struct that has but a typedef.
  struct Candidate {
    lt::Algorithm algorithm;
  };
  std::vector<Candidate> candidates(const GemmPlan& plan, int most) const;
  bool give_algorithm(GemmPlan& plan, const std::string& name) const;
  void measure(GemmPlan& plan, const std::string& name, gpuStream_t stream, const PlanUser& user);

  struct Hash {
    std::size_t operator()(const PlannedGemm& gemm) const;
  };
  lt::Handle handle_ = nullptr;
  std::unordered_map<PlannedGemm, std::unique_ptr<GemmPlan>, Hash> plans_;
};
// Of a device (gemm_cuda.cpp, gemm_hip.cpp).
GemmPlans& gemm_plans(const Device& device);

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

// The part of the device's workspace that the library takes: its start must be a multiple of 256 bytes (cuBLASLt 13.1
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

// False, and nothing is done, if the library has no algorithm.
template <class StateOperands, class Run>
bool run_planned(Device& device, const PlannedGemm& gemm, const StateOperands& state_operands, const Run& run_plan) {
  GemmPlans& all = gemm_plans(device);
  const GemmPlan* plan = all.find(gemm);
  if (plan == nullptr) plan = &all.make(gemm, gpu_stream(device.exec()), {state_operands, run_plan});
  if (!plan->has_algorithm) return false;
  state_operands(*plan);
  run_plan(*plan);
  return true;
}

// multiply_plus, where the library has an algorithm.
template <class T, class C>
bool multiply_by_plan(Device& device, const GemmProblem& p, const T* a, const T* b, const C* d, C* c) {
  const Factor alpha = factor<master_t<T>>(p.alpha), beta = factor<master_t<T>>(p.beta);
  return run_planned(
      device, planned(device, p, {operand_type<T>, operand_type<T>, operand_type<C>}, a, b, d, c),
      [](const GemmPlan&) {}, [&](const GemmPlan& plan) { run(device, plan, alpha, beta, a, b, d, c); });
}

}  // namespace nanotron::kernels::detail
