#include "benches.hpp"

#include <fmt/format.h>

#include <array>
#include <cmath>

#include "nanotron/kernels/gemm/gemm.hpp"
#include "nanotron/kernels/gemm/peak/gemm_peak.hpp"
#include "nanotron/trainer/state/step_settings.hpp"

namespace nanotron::apps::bench {
namespace {

using kernels::Op;

constexpr double giga = 1e9;

// C (m, n) = op(A) op(B), `calls` times per step.
struct GemmShape {
  std::string name;
  Op op_a, op_b;
  index_t m, n, k;
  bool is_gradient;  // of a weight: accumulated in the master type
  index_t calls;
  int shards = 1;  // of k, with reproducible = 'layout'
  double flops() const { return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k); }
};

struct Calls {
  index_t forward, backward;
};
// Shards of the sums over the inputs and over the outputs of a layer, one of which is split over tp.
struct Shards {
  int in, out;
};

// The three GEMMs of y = x W^T, W (out, in).
void add_linear(std::vector<GemmShape>& list, const std::string& name, index_t rows, index_t in, index_t out,
                Calls calls, Shards shards) {
  list.push_back({name + ": forward", Op::none, Op::transpose, rows, out, in, false, calls.forward, shards.in});
  list.push_back({name + ": input gradient", Op::none, Op::none, rows, in, out, false, calls.backward, shards.out});
  list.push_back({name + ": weight gradient", Op::transpose, Op::none, out, in, rows, true, calls.backward});
}

template <class T>
index_t loss_chunk(const model::LocalSizes& s) {
  Arena planning = Arena::planning();
  return nn::LossWorkspace<T>(planning, s.tokens, s.vocabulary, s.vocabulary).chunk();
}

template <class T>
std::vector<GemmShape> gemms_of(const Bench& bench) {
  const model::LocalSizes s = bench.sizes();
  const index_t layers = s.layers * bench.micro_batches();
  const Calls calls{bench.config.parallel.recompute == deck::Recompute::full ? 2 * layers : layers, layers};
  const int on_rank = static_cast<int>(deck::sum_shards(bench.config).tensor) / bench.grid.shape().tp;
  const Shards columns{1, on_rank}, rows{on_rank, 1};
  const index_t chunk = loss_chunk<T>(s);
  const index_t chunks = (s.tokens + chunk - 1) / chunk * bench.micro_batches();
  std::vector<GemmShape> list;
  add_linear(list, "q, k, v", s.tokens, s.hidden, s.query + 2 * s.key, calls, columns);
  add_linear(list, "attention out", s.tokens, s.query, s.hidden, calls, rows);
  if (s.intermediate > 0) {
    add_linear(list, "gate, up", s.tokens, s.hidden, 2 * s.intermediate, calls, columns);
    add_linear(list, "down", s.tokens, s.intermediate, s.hidden, calls, rows);
  }
  for (const LinearShape& l : routed_linears(bench))
    add_linear(list, l.name, l.rows, l.in, l.out, {l.per_layer * calls.forward, l.per_layer * calls.backward},
               {l.in_is_split ? on_rank : 1, l.out_is_split ? on_rank : 1});
  add_linear(list, "head", chunk, s.hidden, s.vocabulary, {chunks, chunks}, columns);
  return list;
}

// Seconds of one GEMM, in the order of sums of the deck's precision%reproducible.
template <class T>
class GemmBench {
 public:
  using M = master_t<T>;

  GemmBench(const Bench& bench, const std::vector<GemmShape>& list)
      : bench_(bench),
        device_(timers_, trainer::gemm_mode_of(bench.config)),
        a_(largest(list, [](const GemmShape& p) { return p.m * p.k; })),
        b_(largest(list, [](const GemmShape& p) { return p.k * p.n; })),
        c_(largest(list, [](const GemmShape& p) { return p.m * p.n; })),
        workspace_("workspace", workspace_bytes(device_, list)) {
    device_.set_gemm_workspace(Vector<std::byte>(workspace_.data(), workspace_.size()));
  }

  Spread seconds(const GemmShape& p) {
    const MatrixRef<const T> a = p.op_a == Op::none ? a_.matrix(p.m, p.k) : a_.matrix(p.k, p.m);
    const MatrixRef<const T> b = p.op_b == Op::none ? b_.matrix(p.k, p.n) : b_.matrix(p.n, p.k);
    const SumOrder order({{p.k, 1}}, p.shards, 1, 0);
    return seconds_of(device_, bench_.grid.world(), bench_.options.seconds, [&] {
      if (p.is_gradient) {
        kernels::gemm<T, M>(device_, p.op_a, p.op_b, 1.0, a, b, 1.0, MatrixRef<M>(c_.data(), p.m, p.n), order);
      } else {
        // The buffer of the master type is large enough for T.
        const MatrixRef<T> c(reinterpret_cast<T*>(c_.data()), p.m, p.n);
        kernels::gemm<T, T>(device_, p.op_a, p.op_b, 1.0, a, b, 0.0, c, order);
      }
    });
  }

 private:
  template <class Size>
  static index_t largest(const std::vector<GemmShape>& list, Size size) {
    index_t most = 0;
    for (const GemmShape& p : list) most = std::max(most, size(p));
    return most;
  }
  static std::size_t workspace_bytes(const Device& device, const std::vector<GemmShape>& list) {
    std::size_t most = 0;
    for (const GemmShape& p : list)
      most = std::max(most, kernels::gemm_workspace_bytes<T>(device.gemm_mode(), built_for, p.m, p.n, p.k));
    return most;
  }

  const Bench& bench_;
  Timers timers_;
  Device device_;
  Buffer<T> a_, b_;
  Buffer<M> c_;
  Kokkos::View<std::byte*, MemorySpace> workspace_;
};

template <class T>
void measure_shapes(const Bench& bench) {
  const std::vector<GemmShape> list = gemms_of<T>(bench);
  GemmBench<T> gemms(bench, list);
  Table table{.key = fmt::format("gemms_{}", name_of(scalar_type_of<T>)),
              .title = fmt::format("GEMMs of a step, {} {}", name_of(scalar_type_of<T>),
                                   trainer::gemm_mode_of(bench.config) == GemmMode::fixed_order
                                       ? "in the order of 'layout'"
                                       : fmt::format("by {}", kernels::gemm_library<T>())),
              .columns = {{"GEMM per rank", "gemm"},
                          {"m", "m"},
                          {"n", "n"},
                          {"k", "k"},
                          {"calls/step", "calls"},
                          {"GFLOP/s per rank", "gflops_rank"},
                          {"min", "gflops_rank_least"},
                          {"max", "gflops_rank_most"},
                          {"all ranks", "gflops_all"},
                          {"ms/step", "ms_per_step"}},
              .rows = {}};
  double total_seconds = 0.0, total_flops = 0.0;
  for (const GemmShape& p : list) {
    const Spread s = gemms.seconds(p);
    const double rate = p.flops() / s.median / giga;
    const double in_step = s.median * static_cast<double>(p.calls);
    total_seconds += in_step;
    total_flops += p.flops() * static_cast<double>(p.calls);
    table.rows.push_back({p.name, p.m, p.n, p.k, p.calls, rate, p.flops() / s.max / giga, p.flops() / s.min / giga,
                          comm::sum(bench.grid.world(), rate), in_step * 1e3});
  }
  const double rate = total_flops / total_seconds / giga;
  table.rows.push_back(
      {"all GEMMs of a step", {}, {}, {}, {}, rate, {}, {}, comm::sum(bench.grid.world(), rate), total_seconds * 1e3});
  bench.report.add(table);
}

// Of the square GEMMs.
template <class T>
std::array<index_t, 2> orders(Device& device) {
  const index_t n = kernels::gemm_peak_order<T>(device);
  return {n, 2 * n};
}

template <class T>
void measure_squares(const Bench& bench, Table& table) {
  Timers timers;
  Device device(timers);
  for (const index_t n : orders<T>(device)) {
    comm::barrier(bench.grid.world());
    const double rate = kernels::gemm_peak<T>(device, n, 2.0 * bench.options.seconds) / giga;
    comm::Group& world = bench.grid.world();
    table.rows.push_back({name_of(scalar_type_of<T>), kernels::gemm_library<T>(), n, rate, comm::min(world, rate),
                          comm::max(world, rate), comm::sum(world, rate)});
  }
}

}  // namespace

void measure_gemm(const Bench& bench, const std::vector<ScalarType>& types) {
  std::vector<ScalarType> with_float = types;
  if (std::ranges::find(types, ScalarType::fp32) == types.end()) with_float.push_back(ScalarType::fp32);
  Table squares{.key = "squares",
                .title = "Square GEMMs, all ranks at once, the best of several",
                .columns = {{"type", "type"},
                            {"library", "library"},
                            {"order", "order"},
                            {"GFLOP/s rank 0", "gflops_rank"},
                            {"min rank", "gflops_least_rank"},
                            {"max rank", "gflops_most_rank"},
                            {"all ranks", "gflops_all"}},
                .rows = {}};
  for (const ScalarType type : with_float) {
    with_scalar_type(type, [&]<class T>(std::type_identity<T>) { measure_squares<T>(bench, squares); });
  }
  bench.report.add(squares);
  for (const ScalarType type : types) {
    with_scalar_type(type, [&]<class T>(std::type_identity<T>) { measure_shapes<T>(bench); });
  }
}

// Normal equations of min sum w ((f x + b y) / t - 1)^2, w the seconds of a step that have this shape; square GEMMs
// have a tenth of them together. y = 0 where memory does not slow GEMMs down.
GemmFit fit_gemms(const Bench& bench, ScalarType type) {
  struct Point {
    double flops, bytes;  // a second
    double weight;
  };
  std::vector<Point> points;
  with_scalar_type(type, [&]<class T>(std::type_identity<T>) {
    std::vector<GemmShape> list = gemms_of<T>(bench);
    for (const index_t n : {256, 512, 1024, 2048}) list.push_back({"square", Op::none, Op::none, n, n, n, false, 0});
    GemmBench<T> gemms(bench, list);
    for (const GemmShape& p : list) {
      const double seconds = gemms.seconds(p).median;
      const std::size_t of_c = p.is_gradient ? 2 * sizeof(master_t<T>) : sizeof(T);
      const double bytes = static_cast<double>(p.m * p.k + p.k * p.n) * sizeof(T) +
                           static_cast<double>(p.m * p.n) * static_cast<double>(of_c);
      points.push_back({p.flops() / seconds, bytes / seconds, seconds * static_cast<double>(p.calls)});
    }
  });
  double all = 0.0, squares = 0.0;
  for (const Point& p : points) all += p.weight, squares += p.weight == 0.0 ? 1.0 : 0.0;
  for (Point& p : points) p.weight = p.weight == 0.0 ? 0.1 / squares : 0.9 * p.weight / all;
  double ff = 0.0, fb = 0.0, bb = 0.0, f1 = 0.0, b1 = 0.0;
  for (const Point& p : points) {
    ff += p.weight * p.flops * p.flops;
    fb += p.weight * p.flops * p.bytes;
    bb += p.weight * p.bytes * p.bytes;
    f1 += p.weight * p.flops;
    b1 += p.weight * p.bytes;
  }
  const double determinant = ff * bb - fb * fb;
  double x = (f1 * bb - b1 * fb) / determinant, y = (b1 * ff - f1 * fb) / determinant;
  if (!(y > 0.0) || !(x > 0.0)) x = f1 / ff, y = 0.0;
  GemmFit fit{.rate = 1.0 / x, .operands = y > 0.0 ? 1.0 / y : 0.0};
  for (const Point& p : points) fit.error += p.weight * std::abs(p.flops * x + p.bytes * y - 1.0);
  return fit;
}

template <class T>
double matrix_ceiling(const Bench& bench, Device& device) {
  double best = 0.0;
  for (const index_t n : orders<T>(device)) {
    comm::barrier(bench.grid.world());
    best = std::max(best, comm::sum(bench.grid.world(), kernels::gemm_peak<T>(device, n, bench.options.seconds)));
  }
  return best;
}

#define NANOTRON_INSTANTIATE(T) template double matrix_ceiling<T>(const Bench&, Device&);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::apps::bench
