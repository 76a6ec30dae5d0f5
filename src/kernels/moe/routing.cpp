#include "nanotron/kernels/moe/routing.hpp"

#include <cmath>

#include "nanotron/base/elementary/exponential.hpp"
#include "nanotron/base/elementary/logarithm.hpp"
#include "nanotron/base/error.hpp"
#include "nanotron/kernels/loop/loop.hpp"

namespace nanotron::kernels {

namespace {

using deck::RouterScore;

// Added to the sum of chosen sigmoid scores, as DeepSeek-V3 does: scores that underflow give weights of zero.
template <class M>
NANOTRON_FUNCTION constexpr M smallest_sum(RouterScore score) {
  return score == RouterScore::sigmoid ? M(1e-20) : M(0);
}

// What the experts of one token are chosen by: logits, or scores plus bias.
template <class M>
struct ChoiceValues {
  const M *values, *bias;  // bias may be null
  NANOTRON_FUNCTION M operator[](index_t e) const { return bias == nullptr ? values[e] : values[e] + bias[e]; }
};

// Of consecutive experts [begin, end): the two largest values, or the largest.
template <class M>
NANOTRON_FUNCTION M group_score(RouterScore score, const ChoiceValues<M>& values, index_t begin, index_t end) {
  M best = values[begin], second = 0;
  bool has_second = false;
  for (index_t e = begin + 1; e < end; ++e) {
    const M value = values[e];
    if (value > best) {
      second = best, best = value;
    } else if (!has_second || value > second) {
      second = value;
    }
    has_second = true;
  }
  return score == RouterScore::sigmoid && has_second ? best + second : best;
}

// A bit for each group in which a token may choose.
template <class M>
NANOTRON_FUNCTION std::uint64_t open_groups(const Routing& routing, const ChoiceValues<M>& values) {
  if (routing.groups_per_token >= routing.groups) return ~std::uint64_t{0};
  const index_t size = routing.experts / routing.groups;
  std::uint64_t open = 0;
  for (index_t i = 0; i < routing.groups_per_token; ++i) {
    index_t best = -1;
    M largest = 0;
    for (index_t g = 0; g < routing.groups; ++g) {
      if ((open >> g & 1U) != 0) continue;
      const M score = group_score(routing.score, values, g * size, (g + 1) * size);
      if (best < 0 || score > largest) best = g, largest = score;
    }
    open |= std::uint64_t{1} << best;
  }
  return open;
}

// The best expert of the open groups that is not among the first `taken` of chosen; at ties the lower index.
template <class M>
NANOTRON_FUNCTION index_t best_expert(const Routing& routing, const ChoiceValues<M>& values, std::uint64_t open,
                                      const std::int64_t* chosen, index_t taken) {
  const index_t size = routing.experts / routing.groups;
  index_t best = -1;
  for (index_t e = 0; e < routing.experts; ++e) {
    bool is_taken = routing.groups > 1 && (open >> (e / size) & 1U) == 0;
    for (index_t i = 0; i < taken; ++i) is_taken = is_taken || chosen[i] == e;
    if (!is_taken && (best < 0 || values[e] > values[best])) best = e;
  }
  return best;
}

// scores <- softmax or sigmoid of the logits; returns z.
template <class M>
NANOTRON_FUNCTION M compute_scores(RouterScore score, index_t experts, const M* l, M* scores) {
  M largest = l[0], sum = 0;
  for (index_t e = 1; e < experts; ++e) largest = largest < l[e] ? l[e] : largest;
  for (index_t e = 0; e < experts; ++e) sum += scores[e] = exponential(l[e] - largest);
  if (score == RouterScore::sigmoid) {
    for (index_t e = 0; e < experts; ++e) scores[e] = M(1) / (M(1) + exponential(-l[e]));
  } else {
    for (index_t e = 0; e < experts; ++e) scores[e] /= sum;
  }
  return largest + logarithm(sum);
}

// p <- p / their sum, which is returned.
template <class M>
NANOTRON_FUNCTION M normalise(index_t experts, M* p) {
  M sum = 0;
  for (index_t e = 0; e < experts; ++e) sum += p[e];
  for (index_t e = 0; e < experts; ++e) p[e] /= sum;
  return sum;
}

}  // namespace

template <class M>
void route_forward(Device& device, const Routing& routing, const FilledPositions& filled, MatrixRef<const M> logits,
                   Matrix<M> probabilities, Vector<std::int64_t> assignments, Vector<M> weights, Vector<M> z,
                   Vector<const M> bias, Vector<M> score_sums) {
  const KernelRegion kernel(device, "route_forward", reads(logits, bias),
                            writes(probabilities, assignments, weights, z, score_sums));
  const index_t experts = routing.experts, k = routing.top_k;
  const bool is_sigmoid = routing.score == RouterScore::sigmoid;
  const M factor = static_cast<M>(routing.factor);
  const M* const b = bias.extent(0) > 0 ? bias.data() : nullptr;
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
          if (is_sigmoid) score_sums.data()[t] = M(1);
          return;
        }
        const M normaliser = z.data()[t] = compute_scores(routing.score, experts, l, p);
        const bool finite = normaliser - normaliser == M(0);
        const ChoiceValues<M> values{b == nullptr && !is_sigmoid ? l : p, b};
        const std::uint64_t open = open_groups(routing, values);
        M chosen_sum = smallest_sum<M>(routing.score);
        for (index_t j = 0; j < k; ++j) {
          // Non-finite logits: experts are assigned round-robin, so that none exceeds its buffer. The loss shows the
          // error.
          chosen[j] = finite ? best_expert(routing, values, open, chosen, j) : (t * k + j) % experts;
          w[j] = p[chosen[j]];
          chosen_sum += w[j];
        }
        if (is_sigmoid) score_sums.data()[t] = normalise(experts, p);
        const M size = routing.weights == TopKWeights::renormalised ? chosen_sum : M(1);
        for (index_t j = 0; j < k; ++j) w[j] = w[j] / size * factor;
      });
}

template <class T>
void route_backward(Device& device, const Routing& routing, const FilledPositions& filled,
                    Matrix<const master_t<T>> probabilities, Vector<const std::int64_t> assignments,
                    Vector<const master_t<T>> weights, Vector<const master_t<T>> z, Vector<const master_t<T>> dweights,
                    Matrix<const std::int64_t> counts, const RouterScales& scales, MatrixRef<T> dlogits,
                    Vector<const master_t<T>> score_sums) {
  const KernelRegion kernel(device, "route_backward",
                            reads(probabilities, assignments, weights, z, dweights, counts, score_sums),
                            writes(dlogits));
  using M = master_t<T>;
  const index_t experts = routing.experts, k = routing.top_k;
  const bool is_sigmoid = routing.score == RouterScore::sigmoid;
  const bool is_renormalised = routing.weights == TopKWeights::renormalised;
  const M factor = static_cast<M>(routing.factor);
  const index_t length = dlogits.rows / static_cast<index_t>(counts.extent(0));
  const double all_tokens = scales.tokens, balance_scale = scales.balance;
  const M zeta = static_cast<M>(2.0 * (scales.zeta / scales.tokens));
  NANOTRON_REQUIRE(!is_sigmoid || scales.zeta == 0.0, "the z-loss is {} with sigmoid scores", scales.zeta);
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
        const M total = is_sigmoid ? score_sums.data()[t] : M(1);  // a score is p times this
        const auto assignments_of_sequence = static_cast<double>(k * filled.tokens_of(t / length));
        const M balance = static_cast<M>(balance_scale / (assignments_of_sequence * all_tokens));
        M shift = 0, size = 1;
        if (is_renormalised) {
          size = smallest_sum<M>(routing.score);
          for (index_t j = 0; j < k; ++j) {
            shift += dw[j] * w[j];
            size += p[chosen[j]] * total;
          }
        }
        M inner = 0;  // of the normalisation that turns scores into p
        for (index_t e = 0; e < experts; ++e) inner += p[e] * (balance * static_cast<M>(n[e]));
        if (!is_sigmoid) {
          for (index_t j = 0; j < k; ++j) inner += p[chosen[j]] * ((factor * dw[j] - shift) / size);
        }
        for (index_t e = 0; e < experts; ++e) {
          M dp = balance * static_cast<M>(n[e]), ds = 0;
          for (index_t j = 0; j < k; ++j) {
            const M of_choice = chosen[j] == e ? (factor * dw[j] - shift) / size : M(0);
            if (is_sigmoid) ds += of_choice;
            if (!is_sigmoid) dp += of_choice;
          }
          const M s = p[e] * total;
          dl[e] = static_cast<T>(is_sigmoid ? s * (M(1) - s) * (ds + (dp - inner) / total)
                                            : p[e] * (dp - inner + zeta * z.data()[t]));
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
          return assignments.data()[i] != no_expert && row_of_assignment.data()[i] == no_row ? 1.0 : 0.0;
        });
        row.for_each(1, [=](const index_t) {
          sums.data()[2 * experts] += squares;
          sums.data()[2 * experts + 1] += without;
        });
      });
}

template <class M>
void balance_bias(Device& device, Vector<const double> loads, double rate, Vector<M> bias) {
  const KernelRegion kernel(device, "balance_bias", reads(loads, bias), writes(bias));
  const auto experts = static_cast<index_t>(loads.extent(0));
  const M step = static_cast<M>(rate);
  for_each_element(
      device, "balance_bias", experts, KOKKOS_LAMBDA(const index_t e) {
        double all = 0.0;  // exact
        for (index_t i = 0; i < experts; ++i) all += loads.data()[i];
        const double mine = static_cast<double>(experts) * loads.data()[e];
        if (mine < all) bias.data()[e] += step;
        if (mine > all) bias.data()[e] -= step;
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
            if (own >= 0 && taken > capacity) rows.data()[(s * places.length + own) * k + j] = no_row;
          }
        }
      });
}

#define NANOTRON_INSTANTIATE(M)                                                                                  \
  template void route_forward<M>(Device&, const Routing&, const FilledPositions&, MatrixRef<const M>, Matrix<M>, \
                                 Vector<std::int64_t>, Vector<M>, Vector<M>, Vector<const M>, Vector<M>);        \
  template void sigmoid_forward<M>(Device&, MatrixRef<const M>, Vector<M>);                                      \
  template void balance_bias<M>(Device&, Vector<const double>, double, Vector<M>);                               \
  template void add_router_sums<M>(Device&, const FilledPositions&, Matrix<const M>, Vector<const std::int64_t>, \
                                   Vector<const std::int64_t>, Vector<const M>, Matrix<const std::int64_t>,      \
                                   Vector<double>);
NANOTRON_FOR_MASTER_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE
#define NANOTRON_INSTANTIATE(T)                                                                                     \
  template void route_backward<T>(Device&, const Routing&, const FilledPositions&, Matrix<const master_t<T>>,       \
                                  Vector<const std::int64_t>, Vector<const master_t<T>>, Vector<const master_t<T>>, \
                                  Vector<const master_t<T>>, Matrix<const std::int64_t>, const RouterScales&,       \
                                  MatrixRef<T>, Vector<const master_t<T>>);                                         \
  template void sigmoid_backward<T>(Device&, Vector<const master_t<T>>, Vector<const master_t<T>>, MatrixRef<T>);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::kernels
