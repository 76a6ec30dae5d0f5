#include "kernels/gemm/lt/gemm_plans.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <limits>
#include <utility>

#include "nanotron/base/error.hpp"
#include "nanotron/tensor/device.hpp"

namespace nanotron::kernels {
namespace detail {
namespace {

constexpr int max_candidates = 16;

// The stored matrix X, seen column-major, where op(X) is (rows, columns) and rows of X are `leading` apart.
lt::Layout layout(lt::DataType type, Op op, index_t rows, index_t columns, index_t leading) {
  if (op == Op::transpose) std::swap(rows, columns);
  lt::Layout made = nullptr;
  NANOTRON_CHECK_LT(
      lt::create_layout(&made, type, static_cast<std::uint64_t>(columns), static_cast<std::uint64_t>(rows), leading));
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

std::string hexadecimal(const lt::Algorithm& algorithm) {
  std::array<unsigned char, sizeof algorithm> bytes;
  std::memcpy(bytes.data(), &algorithm, sizeof algorithm);
  std::string text;
  for (const unsigned char byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

lt::Algorithm algorithm_of(const std::string& text) {
  std::array<unsigned char, sizeof(lt::Algorithm)> bytes{};
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    std::from_chars(text.data() + 2 * i, text.data() + 2 * i + 2, bytes[i], 16);
  }
  lt::Algorithm algorithm;
  std::memcpy(&algorithm, bytes.data(), sizeof algorithm);
  return algorithm;
}

// In bytes, see Alignments.
std::uint32_t alignment_of(const void* data) {
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  return static_cast<std::uint32_t>(std::min<std::uintptr_t>(16, address & (~address + 1)));
}

// Two points of a stream.
class StreamTimer {
 public:
  explicit StreamTimer(gpuStream_t stream) : stream_(stream) {
    for (gpuEvent_t& event : events_) NANOTRON_CHECK_GPU(gpuEventCreateWithFlags(&event, gpuEventDefault));
  }
  ~StreamTimer() {
    for (gpuEvent_t event : events_) static_cast<void>(gpuEventDestroy(event));
  }
  StreamTimer(const StreamTimer&) = delete;
  StreamTimer& operator=(const StreamTimer&) = delete;
  template <class F>
  double milliseconds(const F& work) {
    NANOTRON_CHECK_GPU(gpuEventRecord(events_[0], stream_));
    work();
    NANOTRON_CHECK_GPU(gpuEventRecord(events_[1], stream_));
    NANOTRON_CHECK_GPU(gpuEventSynchronize(events_[1]));
    float took = 0;
    NANOTRON_CHECK_GPU(gpuEventElapsedTime(&took, events_[0], events_[1]));
    return took;
  }

 private:
  gpuStream_t stream_;
  std::array<gpuEvent_t, 2> events_{};
};

}  // namespace

GemmPlan::GemmPlan(const PlannedGemm& of) : gemm(of) {
  const GemmProblem& p = gemm.problem;
  const OperandTypes& types = gemm.types;
  const bool is_wide = types.a.type == lt::type_of<double>;
  NANOTRON_CHECK_LT(lt::create_operation(&operation, is_wide ? lt::sums_in_fp64 : lt::sums_in_fp32,
                                         is_wide ? lt::type_of<double> : lt::type_of<float>));
  const lt::Transpose first = lt::transpose(p.op_b), second = lt::transpose(p.op_a);
  NANOTRON_CHECK_LT(lt::set_operation(operation, lt::transpose_a, &first, sizeof first));
  NANOTRON_CHECK_LT(lt::set_operation(operation, lt::transpose_b, &second, sizeof second));
  lt::state_more(operation, gemm);
  a = layout(types.b.type, p.op_b, p.k, p.n, p.leading_b);
  b = layout(types.a.type, p.op_a, p.m, p.k, p.leading_a);
  c = layout(types.c.type, Op::none, p.m, p.n, p.leading_c);
}

GemmPlan::~GemmPlan() {
  if (c != nullptr) lt::destroy_layout(c);
  if (b != nullptr) lt::destroy_layout(b);
  if (a != nullptr) lt::destroy_layout(a);
  if (operation != nullptr) lt::destroy_operation(operation);
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
          .multiprocessors = gemm_plans(device).multiprocessors};
}

void run(Device& device, const GemmPlan& plan, const Factor& alpha, const Factor& beta, const void* a, const void* b,
         const void* d, void* c) {
  const Workspace workspace = workspace_of(device);
  NANOTRON_CHECK_LT(lt::multiply(gemm_plans(device).handle(), plan.operation, &alpha, b, plan.a, a, plan.b, &beta, d,
                                 plan.c, c, plan.c, &plan.algorithm, workspace.data, workspace.bytes,
                                 gpu_stream(device.exec())));
}

std::size_t GemmPlans::Hash::operator()(const PlannedGemm& gemm) const {
  const GemmProblem& p = gemm.problem;
  std::size_t hash = 0;
  for (const index_t value : {p.m, p.n, p.k, p.leading_a, p.leading_b, p.leading_c, static_cast<index_t>(p.op_a),
                              static_cast<index_t>(p.op_b), static_cast<index_t>(gemm.types.c.type)}) {
    hash = hash * 0x9E3779B97F4A7C15u + static_cast<std::size_t>(value);
  }
  return hash;
}

// The heuristic's, best first.
std::vector<GemmPlans::Candidate> GemmPlans::candidates(const GemmPlan& plan, int most) const {
  lt::Preference preference = nullptr;
  NANOTRON_CHECK_LT(lt::create_preference(&preference));
  NANOTRON_CHECK_LT(
      lt::set_preference(preference, lt::max_workspace, &plan.gemm.workspace, sizeof plan.gemm.workspace));
  lt::state_more(preference, plan.gemm);
  std::array<lt::HeuristicResult, max_candidates> found{};
  int count = 0;
  const auto status = lt::find_algorithms(handle_, plan.operation, plan.a, plan.b, plan.c, plan.c, preference, most,
                                          found.data(), &count);
  lt::destroy_preference(preference);
  if (lt::has_none(status)) return {};
  NANOTRON_CHECK_LT(status);
  std::vector<Candidate> usable;
  for (int i = 0; i < count; ++i) {
    const lt::HeuristicResult& result = found[static_cast<std::size_t>(i)];
    if (result.state == lt::success) usable.push_back({result.algo});
  }
  return usable;
}

bool GemmPlans::give_algorithm(GemmPlan& plan, const std::string& name) const {
  const auto given = algorithms.of.find(name);
  if (given == algorithms.of.end()) return false;
  plan.algorithm = algorithm_of(given->second);
  return lt::can_run(handle_, plan);
}

void GemmPlans::measure(GemmPlan& plan, const std::string& name, gpuStream_t stream, const PlanUser& user) {
  constexpr int runs = 5;
  StreamTimer timer(stream);
  double best = std::numeric_limits<double>::infinity();
  lt::Algorithm fastest{};
  for (const Candidate& candidate : candidates(plan, max_candidates)) {
    plan.algorithm = candidate.algorithm;
    user.run(plan);  // loads its kernels
    double least = std::numeric_limits<double>::infinity();
    for (int i = 0; i < runs; ++i) least = std::min(least, timer.milliseconds([&] { user.run(plan); }));
    if (least < best) best = least, fastest = candidate.algorithm;
  }
  plan.has_algorithm = best < std::numeric_limits<double>::infinity();
  plan.algorithm = fastest;
  if (plan.has_algorithm) algorithms.of[name] = hexadecimal(fastest);
}

const GemmPlan* GemmPlans::find(const PlannedGemm& gemm) const {
  const auto found = plans_.find(gemm);
  return found == plans_.end() ? nullptr : found->second.get();
}

void GemmPlans::use(const GemmAlgorithms& given) {
  plans_.clear();
  algorithms = given;
  counts = {};
}

const GemmPlan& GemmPlans::make(const PlannedGemm& gemm, gpuStream_t stream, const PlanUser& user) {
  auto plan = std::make_unique<GemmPlan>(gemm);
  const std::string name = name_of(gemm);
  user.state_operands(*plan);
  if (source == Source::measured) {
    measure(*plan, name, stream, user);
  } else if (give_algorithm(*plan, name)) {
    plan->has_algorithm = true;
    ++counts.given;
  } else if (const std::vector<Candidate> best = candidates(*plan, 1); !best.empty()) {
    plan->has_algorithm = true;
    plan->algorithm = best.front().algorithm;
    ++counts.by_heuristic;
  } else {
    ++counts.others;
  }
  return *plans_.emplace(gemm, std::move(plan)).first->second;
}

}  // namespace detail

void use_gemm_algorithms(Device& device, const GemmAlgorithms& algorithms, const std::string& file) {
  const std::string here = lt::name(detail::gemm_plans(device).handle());
  if (algorithms.library != here) {
    fail(ExitCode::deck_error, {.what = "the GEMM algorithms are for another library or GPU",
                                .expected = here,
                                .found = algorithms.library,
                                .where = file,
                                .change = "measure them here: nanotron_bench --gemm-algorithms FILE --deck DECK; or "
                                          "leave run%gemm_algorithms empty"});
  }
  detail::gemm_plans(device).use(algorithms);
}

void measure_gemm_algorithms(Device& device) {
  detail::GemmPlans& all = detail::gemm_plans(device);
  all.source = detail::GemmPlans::Source::measured;
  all.algorithms = {.library = lt::name(all.handle()), .of = {}};
}

GemmAlgorithms measured_gemm_algorithms(const Device& device) { return detail::gemm_plans(device).algorithms; }

GemmAlgorithmCounts gemm_algorithm_counts(const Device& device) { return detail::gemm_plans(device).counts; }

}  // namespace nanotron::kernels
