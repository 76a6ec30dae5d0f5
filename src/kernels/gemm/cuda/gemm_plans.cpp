#include "kernels/gemm/cuda/gemm_plans.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <limits>
#include <utility>

#include "nanotron/base/error.hpp"
#include "nanotron/tensor/device.hpp"

namespace nanotron {
namespace kernels::detail {
namespace {

constexpr int max_candidates = 16;

// The stored matrix X, seen column-major, where op(X) is (rows, columns) and rows of X are `leading` apart.
cublasLtMatrixLayout_t layout(cudaDataType_t type, Op op, index_t rows, index_t columns, index_t leading) {
  if (op == Op::transpose) std::swap(rows, columns);
  cublasLtMatrixLayout_t made = nullptr;
  NANOTRON_CHECK_CUBLAS(cublasLtMatrixLayoutCreate(&made, type, static_cast<std::uint64_t>(columns),
                                                   static_cast<std::uint64_t>(rows), leading));
  return made;
}

// In a file of algorithms: no two GEMMs have the same.
std::string name_of(const PlannedGemm& gemm) {
  const GemmProblem& p = gemm.problem;
  const auto letter = [](Op op) { return op == Op::none ? 'n' : 't'; };
  const std::string share = gemm.multiprocessors > 0 ? fmt::format(" multiprocessors {}", gemm.multiprocessors) : "";
  const ScaleModes& modes = gemm.scale_modes;
  const std::string scales = modes == ScaleModes() ? "" : fmt::format(" scales {} {}", modes.a, modes.b);
  return fmt::format("{}{} {} {} {} {} x {} x {} ld {} {} {} alpha {} beta {} align {} {} {} {} workspace {}{}{}",
                     letter(p.op_a), letter(p.op_b), gemm.types.a.name, gemm.types.b.name, gemm.types.c.name, p.m, p.n,
                     p.k, p.leading_a, p.leading_b, p.leading_c, p.alpha, p.beta, gemm.alignments.a, gemm.alignments.b,
                     gemm.alignments.c, gemm.alignments.d, gemm.workspace, share, scales);
}

static_assert(sizeof(cublasLtMatmulAlgo_t) == 64, "a file of algorithms has 128 digits for each");

std::string hexadecimal(const cublasLtMatmulAlgo_t& algorithm) {
  std::array<unsigned char, sizeof algorithm> bytes;
  std::memcpy(bytes.data(), &algorithm, sizeof algorithm);
  std::string text;
  for (const unsigned char byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

cublasLtMatmulAlgo_t algorithm_of(const std::string& text) {
  std::array<unsigned char, sizeof(cublasLtMatmulAlgo_t)> bytes{};
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    std::from_chars(text.data() + 2 * i, text.data() + 2 * i + 2, bytes[i], 16);
  }
  cublasLtMatmulAlgo_t algorithm;
  std::memcpy(&algorithm, bytes.data(), sizeof algorithm);
  return algorithm;
}

std::string library_name() { return fmt::format("cuBLASLt {}, {}", cublasLtGetVersion(), device_name()); }

// In bytes, see Alignments.
std::uint32_t alignment_of(const void* data) {
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  return static_cast<std::uint32_t>(std::min<std::uintptr_t>(16, address & (~address + 1)));
}

// Two points of a stream.
class StreamTimer {
 public:
  explicit StreamTimer(cudaStream_t stream) : stream_(stream) {
    for (cudaEvent_t& event : events_) NANOTRON_CHECK_GPU(cudaEventCreateWithFlags(&event, cudaEventDefault));
  }
  ~StreamTimer() {
    for (cudaEvent_t event : events_) cudaEventDestroy(event);
  }
  StreamTimer(const StreamTimer&) = delete;
  StreamTimer& operator=(const StreamTimer&) = delete;
  template <class F>
  double milliseconds(const F& work) {
    NANOTRON_CHECK_GPU(cudaEventRecord(events_[0], stream_));
    work();
    NANOTRON_CHECK_GPU(cudaEventRecord(events_[1], stream_));
    NANOTRON_CHECK_GPU(cudaEventSynchronize(events_[1]));
    float took = 0;
    NANOTRON_CHECK_GPU(cudaEventElapsedTime(&took, events_[0], events_[1]));
    return took;
  }

 private:
  cudaStream_t stream_;
  std::array<cudaEvent_t, 2> events_{};
};

}  // namespace

cublasComputeType_t compute_type(cudaDataType_t operands) {
  return operands == CUDA_R_64F ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F;  // never TF32
}

GemmPlan::GemmPlan(const PlannedGemm& of) : gemm(of) {
  const auto& [p, alignments, types, workspace, multiprocessors, fast_accumulation, modes] = gemm;
  const cudaDataType_t scale = types.a.type == CUDA_R_64F ? CUDA_R_64F : CUDA_R_32F;
  NANOTRON_CHECK_CUBLAS(cublasLtMatmulDescCreate(&operation, compute_type(types.a.type), scale));
  const cublasOperation_t first = operation_of(p.op_b), second = operation_of(p.op_a);
  NANOTRON_CHECK_CUBLAS(cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first));
  NANOTRON_CHECK_CUBLAS(cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof second));
  if (multiprocessors > 0) {
    NANOTRON_CHECK_CUBLAS(cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET,
                                                         &multiprocessors, sizeof multiprocessors));
  }
  if (fast_accumulation != 0) {
    NANOTRON_CHECK_CUBLAS(cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast_accumulation,
                                                         sizeof fast_accumulation));
  }
#if CUBLAS_VERSION >= 120900
  if (modes != ScaleModes()) {
    NANOTRON_CHECK_CUBLAS(
        cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &modes.a, sizeof modes.a));
    NANOTRON_CHECK_CUBLAS(
        cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &modes.b, sizeof modes.b));
  }
#endif
  a = layout(types.b.type, p.op_b, p.k, p.n, p.leading_b);
  b = layout(types.a.type, p.op_a, p.m, p.k, p.leading_a);
  c = layout(types.c.type, Op::none, p.m, p.n, p.leading_c);
}

GemmPlan::~GemmPlan() {
  if (c != nullptr) cublasLtMatrixLayoutDestroy(c);
  if (b != nullptr) cublasLtMatrixLayoutDestroy(b);
  if (a != nullptr) cublasLtMatrixLayoutDestroy(a);
  if (operation != nullptr) cublasLtMatmulDescDestroy(operation);
}

GemmHandles& gemm_handles(const Device& device) {
  auto& gemms = device.gemm_handles();
  if (gemms == nullptr) gemms = std::make_shared<GemmHandles>();
  return *gemms;
}

Workspace workspace_of(const Device& device) {
  const Vector<std::byte>& given = device.gemm_workspace();
  constexpr std::uintptr_t alignment = 256;
  const std::uintptr_t before = (~reinterpret_cast<std::uintptr_t>(given.data()) + 1) % alignment;
  if (given.extent(0) <= before) return {};
  return {.data = given.data() + before, .bytes = given.extent(0) - before};
}

PlannedGemm planned(const Device& device, const GemmProblem& p, const OperandTypes& types, const void* a, const void* b,
                    const void* d, const void* c) {
  return {.problem = p,
          .alignments = {alignment_of(b), alignment_of(a), alignment_of(d), alignment_of(c)},  // exchanged
          .types = types,
          .workspace = workspace_of(device).bytes,
          .multiprocessors = gemm_handles(device).multiprocessors};
}

void run(Device& device, const GemmPlan& plan, const Factor& alpha, const Factor& beta, const void* a, const void* b,
         const void* d, void* c) {
  const Workspace workspace = workspace_of(device);
  NANOTRON_CHECK_CUBLAS(cublasLtMatmul(gemm_handles(device).lt, plan.operation, &alpha, b, plan.a, a, plan.b, &beta, d,
                                       plan.c, c, plan.c, &plan.algorithm, workspace.data, workspace.bytes,
                                       device.exec().cuda_stream()));
}

}  // namespace kernels::detail

using namespace kernels::detail;

GemmHandles::GemmHandles() {
  NANOTRON_CHECK_CUBLAS(cublasLtCreate(&lt));
  NANOTRON_CHECK_CUBLAS(cublasCreate(&cublas));
}
GemmHandles::~GemmHandles() {
  plans_.clear();
  cublasDestroy(cublas);
  cublasLtDestroy(lt);
}

std::size_t GemmHandles::Hash::operator()(const PlannedGemm& gemm) const {
  const GemmProblem& p = gemm.problem;
  std::size_t hash = 0;
  for (const index_t value : {p.m, p.n, p.k, p.leading_a, p.leading_b, p.leading_c, static_cast<index_t>(p.op_a),
                              static_cast<index_t>(p.op_b), static_cast<index_t>(gemm.types.c.type)}) {
    hash = hash * 0x9E3779B97F4A7C15u + static_cast<std::size_t>(value);
  }
  return hash;
}

// The heuristic's, best first.
std::vector<GemmHandles::Candidate> GemmHandles::candidates(const GemmPlan& plan, int most) const {
  cublasLtMatmulPreference_t preference = nullptr;
  NANOTRON_CHECK_CUBLAS(cublasLtMatmulPreferenceCreate(&preference));
  NANOTRON_CHECK_CUBLAS(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                             &plan.gemm.workspace, sizeof plan.gemm.workspace));
  const Alignments& alignments = plan.gemm.alignments;
  const std::array<std::pair<cublasLtMatmulPreferenceAttributes_t, std::uint32_t>, 5> more{
      {{CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignments.a},
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignments.b},
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignments.c},
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignments.d},
       // Parts of a sum over k are added in the accumulation type and rounded once.
       {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE}}};
  for (const auto& [attribute, value] : more) {
    NANOTRON_CHECK_CUBLAS(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value));
  }
  std::array<cublasLtMatmulHeuristicResult_t, max_candidates> found{};
  int count = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(lt, plan.operation, plan.a, plan.b, plan.c, plan.c,
                                                               preference, most, found.data(), &count);
  cublasLtMatmulPreferenceDestroy(preference);
  NANOTRON_CHECK_CUBLAS(status);
  std::vector<Candidate> usable;
  for (int i = 0; i < count; ++i) {
    const cublasLtMatmulHeuristicResult_t& result = found[static_cast<std::size_t>(i)];
    if (result.state == CUBLAS_STATUS_SUCCESS) usable.push_back({result.algo});
  }
  const GemmProblem& p = plan.gemm.problem;
  NANOTRON_REQUIRE(!usable.empty(), "cuBLASLt has no algorithm for a GEMM of {} x {} x {}", p.m, p.n, p.k);
  return usable;
}

bool GemmHandles::give_algorithm(GemmPlan& plan, const std::string& name) const {
  const auto given = algorithms.of.find(name);
  if (given == algorithms.of.end()) return false;
  plan.algorithm = algorithm_of(given->second);
  cublasLtMatmulHeuristicResult_t checked{};
  const cublasStatus_t status =
      cublasLtMatmulAlgoCheck(lt, plan.operation, plan.a, plan.b, plan.c, plan.c, &plan.algorithm, &checked);
  return status == CUBLAS_STATUS_SUCCESS && checked.workspaceSize <= plan.gemm.workspace;
}

void GemmHandles::measure(GemmPlan& plan, const std::string& name, cudaStream_t stream, const RunGemm& run) {
  constexpr int runs = 5;
  StreamTimer timer(stream);
  double best = std::numeric_limits<double>::infinity();
  cublasLtMatmulAlgo_t fastest{};
  for (const Candidate& candidate : candidates(plan, max_candidates)) {
    plan.algorithm = candidate.algorithm;
    run(plan);  // loads its kernels
    double least = std::numeric_limits<double>::infinity();
    for (int i = 0; i < runs; ++i) least = std::min(least, timer.milliseconds([&] { run(plan); }));
    if (least < best) best = least, fastest = candidate.algorithm;
  }
  plan.algorithm = fastest;
  algorithms.of[name] = hexadecimal(fastest);
}

const GemmPlan* GemmHandles::plan_of(const PlannedGemm& gemm) const {
  const auto found = plans_.find(gemm);
  return found == plans_.end() ? nullptr : found->second.get();
}

void GemmHandles::use(const kernels::GemmAlgorithms& given) {
  plans_.clear();
  algorithms = given;
  counts = {};
}

const GemmPlan& GemmHandles::make_plan(const PlannedGemm& gemm, cudaStream_t stream, const RunGemm& run) {
  auto plan = std::make_unique<GemmPlan>(gemm);
  const std::string name = name_of(gemm);
  if (source == Source::measured) {
    measure(*plan, name, stream, run);
  } else if (give_algorithm(*plan, name)) {
    ++counts.given;
  } else {
    ++counts.by_heuristic;
    plan->algorithm = candidates(*plan, 1).front().algorithm;
  }
  return *plans_.emplace(gemm, std::move(plan)).first->second;
}

namespace kernels {

void use_gemm_algorithms(Device& device, const GemmAlgorithms& algorithms, const std::string& file) {
  const std::string here = library_name();
  if (algorithms.library != here) {
    fail(ExitCode::deck_error, {.what = "the GEMM algorithms are for another library or GPU",
                                .expected = here,
                                .found = algorithms.library,
                                .where = file,
                                .change = "measure them here: nanotron_bench --gemm-algorithms FILE --deck DECK; or "
                                          "leave run%gemm_algorithms empty"});
  }
  gemm_handles(device).use(algorithms);
}

void leave_multiprocessors(Device& device, int count) {
  int current = 0;
  cudaDeviceProp properties{};
  NANOTRON_CHECK_GPU(cudaGetDevice(&current));
  NANOTRON_CHECK_GPU(cudaGetDeviceProperties(&properties, current));
  gemm_handles(device).multiprocessors = count > 0 ? std::max(1, properties.multiProcessorCount - count) : 0;
}

void measure_gemm_algorithms(Device& device) {
  GemmHandles& all = gemm_handles(device);
  all.source = GemmHandles::Source::measured;
  all.algorithms = {.library = library_name(), .of = {}};
}

GemmAlgorithms measured_gemm_algorithms(const Device& device) { return gemm_handles(device).algorithms; }

GemmAlgorithmCounts gemm_algorithm_counts(const Device& device) { return gemm_handles(device).counts; }

}  // namespace kernels
}  // namespace nanotron
