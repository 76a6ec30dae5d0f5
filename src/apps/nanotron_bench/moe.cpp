// What the benchmark measures of a mixture of experts.

#include "kernel_rows.hpp"
#include "nanotron/base/types.hpp"
#include "nanotron/kernels/gemm/grouped/grouped_gemm.hpp"
#include "nanotron/kernels/mlp/gated.hpp"
#include "nanotron/kernels/moe/routing.hpp"

namespace nanotron::apps::bench {
namespace {

// The experts of a layer on one rank if all receive equally many tokens.
struct EvenLoad {
  index_t experts, width, rows;  // rows of each, at least 1
};

EvenLoad even_load(const Bench& bench) {
  const deck::MoeConfig& moe = bench.config.model.moe;
  const index_t experts = moe.num_experts / bench.config.parallel.ep;
  const index_t of_rank = bench.sizes().tokens / bench.grid.shape().tp_in_ep();
  const index_t rows = of_rank * moe.num_experts_per_tok / experts;
  return {experts, bench.table().expert_width.size(), std::max<index_t>(1, rows)};
}

// The first row of each expert, and the end of the last one's.
Kokkos::View<std::int64_t*, Kokkos::LayoutRight, MemorySpace> even_offsets(const EvenLoad& load) {
  const Kokkos::View<std::int64_t*, Kokkos::LayoutRight, MemorySpace> begin("offsets",
                                                                            static_cast<std::size_t>(load.experts + 1));
  const index_t rows = load.rows;
  Kokkos::parallel_for(
      "offsets", kernels::RangePolicy(0, load.experts + 1), KOKKOS_LAMBDA(const index_t e) { begin(e) = e * rows; });
  return begin;
}

// The choice of experts from the router's outputs, and its gradient.
template <class T>
void routing(KernelRows<T>& table) {
  using M = master_t<T>;
  const deck::MoeConfig& moe = table.bench().config.model.moe;
  const index_t n = table.bench().sizes().tokens, experts = moe.num_experts, k = moe.num_experts_per_tok;
  const kernels::Routing of{
      .experts = experts,
      .top_k = k,
      .weights = moe.norm_topk_prob ? kernels::TopKWeights::renormalised : kernels::TopKWeights::scores,
      .score = moe.router_score,
      .groups = moe.n_group,
      .groups_per_token = moe.topk_group,
      .factor = moe.routed_scaling_factor};
  const bool is_sigmoid = moe.router_score == deck::RouterScore::sigmoid;
  const index_t sums = is_sigmoid ? n : 0, biases = is_sigmoid ? experts : 0;
  const Buffer<M> logits(n * experts), probabilities(n * experts), weights(n * k), z(n), bias(experts), scores(n);
  const Buffer<T> dlogits(n * experts);
  const Kokkos::View<std::int64_t*, MemorySpace> chosen("chosen", static_cast<std::size_t>(n * k));
  const Kokkos::View<std::int64_t*, MemorySpace> counts("counts", static_cast<std::size_t>(experts));
  const Vector<std::int64_t> assignments(chosen.data(), n * k);
  table.by_plan(table.in_layers(), [&](Device& device) {
    kernels::route_forward<M>(device, of, {}, logits.matrix(n, experts), probabilities.matrix(n, experts), assignments,
                              weights.vector(n * k), z.vector(n), Vector<const M>(bias.data(), biases),
                              scores.vector(sums));
  });
  table.by_plan(table.in_layers(), [&](Device& device) {
    kernels::route_backward<T>(device, of, {}, probabilities.matrix(n, experts), assignments, weights.vector(n * k),
                               z.vector(n), weights.vector(n * k),
                               Matrix<const std::int64_t>(counts.data(), 1, experts), {}, dlogits.matrix(n, experts),
                               scores.vector(sums));
  });
}

// SwiGLU of the routed experts; the shared expert uses the same kernel.
template <class T>
void weighted_swiglu(KernelRows<T>& table, const EvenLoad& e) {
  using M = master_t<T>;
  const index_t n = e.experts * e.rows, f = e.width;
  const Buffer<T> gate_up(2 * n * f), h(n * f), dh(n * f);
  const Buffer<M> weights(n), dweights(n);
  const double one = KernelRows<T>::bytes(n * f, sizeof(T));
  table.by_bytes("weighted_swiglu_forward", table.in_layers(), 3 * one, [&] {
    kernels::weighted_gated_forward<T>(table.device(), kernels::Swiglu(), gate_up.matrix(n, 2 * f), weights.vector(n),
                                       h.matrix(n, f));
  });
  table.by_bytes("weighted_swiglu_backward", table.in_layers(), 5 * one, [&] {
    kernels::weighted_gated_backward<T>(table.device(), kernels::Swiglu(), gate_up.matrix(n, 2 * f), weights.vector(n),
                                        dh.matrix(n, f), dweights.vector(n));
  });
}

// The first GEMM of the experts here with as many rows each, one after another as in a step, and in one launch.
template <class T>
void first_gemms(KernelRows<T>& table, const EvenLoad& e) {
  if constexpr (std::is_same_v<T, bf16> && !kernels::on_host) {
    const index_t out = 2 * e.width, in = table.bench().sizes().hidden, rows = e.experts * e.rows;
    if (out % 8 != 0 || in % 8 != 0) return;
    const Buffer<T> x(rows * in), w(e.experts * out * in), y(rows * out);
    const auto begin = even_offsets(e);
    const double operations = 2.0 * static_cast<double>(rows) * static_cast<double>(out * in);
    table.by_operations("experts, one GEMM each", table.in_layers(), operations, [&] {
      for (index_t i = 0; i < e.experts; ++i) {
        kernels::gemm<T, T>(table.device(), kernels::Op::none, kernels::Op::transpose, 1.0,
                            MatrixRef<const T>(x.data() + i * e.rows * in, e.rows, in),
                            MatrixRef<const T>(w.data() + i * out * in, out, in), 0.0,
                            MatrixRef<T>(y.data() + i * e.rows * out, e.rows, out));
      }
    });
    table.by_operations("experts, grouped", table.in_layers(), operations, [&] {
      kernels::grouped_forward(table.device(), x.matrix(rows, in), {w.data(), e.experts, out, in, out * in}, begin,
                               y.matrix(rows, out));
    });
  }
}

}  // namespace

std::vector<LinearShape> routed_linears(const Bench& bench) {
  const index_t all = bench.config.model.moe.num_experts;
  if (all == 0) return {};
  const EvenLoad e = even_load(bench);
  const model::LocalSizes s = bench.sizes();
  return {{"router", s.tokens, s.hidden, all, 1, false, false},
          {"expert's gate, up", e.rows, s.hidden, 2 * e.width, e.experts, false, true},
          {"expert's down", e.rows, e.width, s.hidden, e.experts, true, false}};
}

template <class T>
bool add_routed_kernels(KernelRows<T>& table) {
  if (table.bench().config.model.moe.num_experts == 0) return false;
  const EvenLoad e = even_load(table.bench());
  routing<T>(table);
  weighted_swiglu<T>(table, e);
  first_gemms<T>(table, e);
  return true;
}

#define NANOTRON_INSTANTIATE(T) template bool add_routed_kernels<T>(KernelRows<T>&);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::apps::bench
