#include "nanotron/kernels/moe/routing.hpp"

#include <cmath>

#include "nanotron/base/error.hpp"
#include "nanotron/kernels/loop/loop.hpp"
#include "nanotron/kernels/loop/scalar_math.hpp"

namespace nanotron::kernels {

template <class M>
void route_forward(Device& device, const Routing& routing, const FilledPositions& filled, MatrixRef<const M> logits,
                   Matrix<M> probabilities, Vector<std::int64_t> assignments, Vector<M> weights, Vector<M> z) {
  const KernelRegion kernel(device, "route_forward", reads(logits), writes(probabilities, assignments, weights, z));
  const index_t experts = routing.experts, k = routing.top_k;
  const TopKWeights kind = routing.weights;
  NANOTRON_REQUIRE(experts >= k && logits.columns >= experts, "{} of {} experts, logits of {}", k, experts,
                   logits.columns);
  for_each_element(
      device, "route_forward", logits.rows, KOKKOS_LAMBDA(const index_t t) {
        const M* const l = logits.data + t * logits.leading;
        M* const p = probabilities.data() + t * experts;
        std::int64_t* const chosen = assignments.data() + t * k;
        M* const w = weights.data() + t * k;
        if (!filled.has_token(t)) {
          for (index_t e = 0; e < experts; ++e) p[e] = M(0);
          for (index_t j = 0; j < k; ++j) chosen[j] = no_expert, w[j] = M(0);
          z.data()[t] = M(0);
          return;
        }
        M largest = l[0], sum = 0;
        for (index_t e = 1; e < experts; ++e) largest = largest < l[e] ? l[e] : largest;
        for (index_t e = 0; e < experts; ++e) sum += p[e] = exponential(l[e] - largest);
        for (index_t e = 0; e < experts; ++e) p[e] /= sum;
        const M normaliser = z.data()[t] = largest + std::log(sum);
        const bool finite = normaliser - normaliser == M(0);
        M chosen_sum = 0;
        for (index_t j = 0; j < k; ++j) {
          index_t best = -1;
          for (index_t e = 0; e < experts; ++e) {
            bool taken = false;
            for (index_t i = 0; i < j; ++i) taken = taken || chosen[i] == e;
            if (!taken && (best < 0 || l[e] > l[best])) best = e;
          }
          // Non-finite logits: experts are assigned round-robin, so that none exceeds its buffer. The loss shows the
          // error.
          chosen[j] = finite ? best : (t * k + j) % experts;
          w[j] = p[chosen[j]];
          chosen_sum += w[j];
        }
        if (kind == TopKWeights::softmax) return;
        for (index_t j = 0; j < k; ++j) w[j] /= chosen_sum;
      });
}

template <class T>
void route_backward(Device& device, const Routing& routing, const FilledPositions& filled,
                    Matrix<const master_t<T>> probabilities, Vector<const std::int64_t> assignments,
                    Vector<const master_t<T>> weights, Vector<const master_t<T>> z, Vector<const master_t<T>> dweights,
                    Matrix<const std::int64_t> counts, const RouterScales& scales, MatrixRef<T> dlogits) {
  const KernelRegion kernel(device, "route_backward", reads(probabilities, assignments, weights, z, dweights, counts),
                            writes(dlogits));
  using M = master_t<T>;
  const index_t experts = routing.experts, k = routing.top_k;
  const TopKWeights kind = routing.weights;
  const index_t length = dlogits.rows / static_cast<index_t>(counts.extent(0));
  const double all_tokens = scales.tokens, balance_scale = scales.balance;
  const M zeta = static_cast<M>(2.0 * (scales.zeta / scales.tokens));
  for_each_element(
      device, "route_backward", dlogits.rows, KOKKOS_LAMBDA(const index_t t) {
        const M* const p = probabilities.data() + t * experts;
        const std::int64_t* const n = counts.data() + t / length * experts;
        const std::int64_t* const chosen = assignments.data() + t * k;
        const M* const w = weights.data() + t * k;
        const M* const dw = dweights.data() + t * k;
        T* const dl = dlogits.data + t * dlogits.leading;
        if (!filled.has_token(t)) {
          for (index_t e = 0; e < experts; ++e) dl[e] = T(0);
          return;
        }
        const auto assignments_of_sequence = static_cast<double>(k * filled.tokens_of(t / length));
        const M balance = static_cast<M>(balance_scale / (assignments_of_sequence * all_tokens));
        M shift = 0, size = 1;
        if (kind == TopKWeights::renormalised) {
          size = 0;
          for (index_t j = 0; j < k; ++j) {
            shift += dw[j] * w[j];
            size += p[chosen[j]];
          }
        }
        M inner = 0;
        for (index_t e = 0; e < experts; ++e) inner += p[e] * (balance * static_cast<M>(n[e]));
        for (index_t j = 0; j < k; ++j) inner += p[chosen[j]] * ((dw[j] - shift) / size);
        for (index_t e = 0; e < experts; ++e) {
          M dp = balance * static_cast<M>(n[e]);
          for (index_t j = 0; j < k; ++j) dp += chosen[j] == e ? (dw[j] - shift) / size : M(0);
          dl[e] = static_cast<T>(p[e] * (dp - inner + zeta * z.data()[t]));
        }
      });
}

template <class M>
void sigmoid_forward(Device& device, MatrixRef<const M> logits, Vector<M> gate) {
  const KernelRegion kernel(device, "sigmoid_forward", reads(gate), writes(gate));
  for_each_element(
      device, "sigmoid_forward", logits.rows,
      KOKKOS_LAMBDA(const index_t i) { gate.data()[i] = M(1) / (M(1) + exponential(-logits(i, 0))); });
}

template <class T>
void sigmoid_backward(Device& device, Vector<const master_t<T>> gate, Vector<const master_t<T>> dgate,
                      MatrixRef<T> dlogits) {
  const KernelRegion kernel(device, "sigmoid_backward", reads(gate, dgate), writes(dlogits));
  using M = master_t<T>;
  for_each_element(
      device, "sigmoid_backward", dlogits.rows, KOKKOS_LAMBDA(const index_t i) {
        const M g = gate.data()[i];
        dlogits(i, 0) = static_cast<T>(dgate.data()[i] * g * (M(1) - g));
      });
}

template <class M>
void add_router_sums(Device& device, const FilledPositions& filled, Matrix<const M> probabilities,
                     Vector<const std::int64_t> assignments, Vector<const std::int64_t> row_of_assignment,
                     Vector<const M> z, Matrix<const std::int64_t> counts, Vector<double> sums) {
  const KernelRegion kernel(device, "add_router_sums", reads(probabilities, assignments, row_of_assignment, z),
                            writes(sums));
  const auto tokens = static_cast<index_t>(probabilities.extent(0)),
             experts = static_cast<index_t>(probabilities.extent(1));
  const auto n = static_cast<index_t>(assignments.extent(0));
  const index_t length = tokens / static_cast<index_t>(counts.extent(0));
  for_each_row(
      device, "expert_sums", experts, KOKKOS_LAMBDA(const Row& row, const index_t e) {
        const double balance = row.template sum<double>(tokens, [=](const index_t t) {
          if (!filled.has_token(t)) return 0.0;
          const index_t s = t / length;
          const double share = static_cast<double>(filled.length) / static_cast<double>(filled.tokens_of(s));
          return static_cast<double>(counts.data()[s * experts + e]) *
                 (static_cast<double>(probabilities.data()[t * experts + e]) * share);
        });
        const double chosen =
            row.template sum<double>(n, [=](const index_t i) { return assignments.data()[i] == e ? 1.0 : 0.0; });
        row.for_each(1, [=](const index_t) {
          sums.data()[e] += balance;
          sums.data()[experts + e] += chosen;
        });
      });
  for_each_row(
      device, "router_sums", 1, KOKKOS_LAMBDA(const Row& row, const index_t) {
        const double squares = row.template sum<double>(tokens, [=](const index_t t) {
          const auto value = static_cast<double>(z.data()[t]);
          return value * value;
        });
        const double without = row.template sum<double>(n, [=](const index_t i) {
          return assignments.data()[i] != no_expert && row_of_assignment.data()[i] < 0 ? 1.0 : 0.0;
        });
        row.for_each(1, [=](const index_t) {
          sums.data()[2 * experts] += squares;
          sums.data()[2 * experts + 1] += without;
        });
      });
}

void mark_overflow(Device& device, const Routing& routing, const SequencePlaces& places, const FilledPositions& filled,
                   double factor, Vector<const std::int64_t> assignments, Vector<std::int64_t> rows) {
  const KernelRegion kernel(device, "mark_overflow", reads(assignments, rows), writes(rows));
  const index_t experts = routing.experts, k = routing.top_k;
  const auto positions = static_cast<index_t>(places.base.extent(0));
  for_each_element(
      device, "mark_overflow", places.sequences * experts, KOKKOS_LAMBDA(const index_t i) {
        const index_t s = i / experts, e = i % experts;
        const index_t capacity = expert_capacity(factor, routing, filled.tokens_of(s));
        index_t taken = 0;
        for (index_t p = 0; p < positions; ++p) {
          const index_t at = places.base.data()[p] + s * places.step.data()[p];
          for (index_t j = 0; j < k; ++j) {
            if (assignments.data()[at + j] != e) continue;
            ++taken;
            const index_t own = places.own.data()[p];
            if (own >= 0) rows.data()[(s * places.length + own) * k + j] = taken > capacity ? -1 : 0;
          }
        }
      });
}

#define NANOTRON_INSTANTIATE(M)                                                                                  \
  template void route_forward<M>(Device&, const Routing&, const FilledPositions&, MatrixRef<const M>, Matrix<M>, \
                                 Vector<std::int64_t>, Vector<M>, Vector<M>);                                    \
  template void sigmoid_forward<M>(Device&, MatrixRef<const M>, Vector<M>);                                      \
  template void add_router_sums<M>(Device&, const FilledPositions&, Matrix<const M>, Vector<const std::int64_t>, \
                                   Vector<const std::int64_t>, Vector<const M>, Matrix<const std::int64_t>,      \
                                   Vector<double>);
NANOTRON_FOR_MASTER_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE
#define NANOTRON_INSTANTIATE(T)                                                                                     \
  template void route_backward<T>(Device&, const Routing&, const FilledPositions&, Matrix<const master_t<T>>,       \
                                  Vector<const std::int64_t>, Vector<const master_t<T>>, Vector<const master_t<T>>, \
                                  Vector<const master_t<T>>, Matrix<const std::int64_t>, const RouterScales&,       \
                                  MatrixRef<T>);                                                                    \
  template void sigmoid_backward<T>(Device&, Vector<const master_t<T>>, Vector<const master_t<T>>, MatrixRef<T>);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::kernels
