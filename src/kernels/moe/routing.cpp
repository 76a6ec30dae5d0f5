#include "nanotron/kernels/moe/routing.hpp"

#include <cmath>

#include "nanotron/base/error.hpp"
#include "nanotron/kernels/loop/loop.hpp"
#include "nanotron/kernels/loop/scalar_math.hpp"

namespace nanotron::kernels {

template <class M>
void route_forward(Device& device, const Routing& routing, const FilledPositions& filled, MatrixRef<const M> logits,
                   Matrix<M> probabilities, Vector<std::int64_t> choices, Vector<M> weights, Vector<M> z) {
  const KernelRegion kernel(device, "route_forward", reads(logits), writes(probabilities, choices, weights, z));
  const index_t experts = routing.experts, k = routing.top_k;
  const TopKWeights kind = routing.weights;
  NANOTRON_REQUIRE(experts >= k && logits.columns >= experts, "{} of {} experts, logits of {}", k, experts,
                   logits.columns);
  for_each_element(device, "route_forward", logits.rows, KOKKOS_LAMBDA(const index_t t) {
    const M* const l = logits.data + t * logits.leading;
    M* const p = probabilities.data() + t * experts;
    std::int64_t* const chosen = choices.data() + t * k;
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
      // Non-finite logits: experts are assigned round-robin, so that none exceeds its buffer. The loss shows the error.
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
                    Matrix<const master_t<T>> probabilities, Vector<const std::int64_t> choices,
                    Vector<const master_t<T>> weights, Vector<const master_t<T>> z,
                    Vector<const master_t<T>> dweights, Matrix<const std::int64_t> counts, const RouterScales& scales,
                    MatrixRef<T> dlogits) {
  const KernelRegion kernel(device, "route_backward", reads(probabilities, choices, weights, z, dweights, counts),
                            writes(dlogits));
  using M = master_t<T>;
  const index_t experts = routing.experts, k = routing.top_k;
  const TopKWeights kind = routing.weights;
  const index_t length = dlogits.rows / static_cast<index_t>(counts.extent(0));
  const double all_tokens = scales.tokens, balance_scale = scales.balance;
  const M zeta = static_cast<M>(2.0 * (scales.zeta / scales.tokens));
  for_each_element(device, "route_backward", dlogits.rows, KOKKOS_LAMBDA(const index_t t) {
    const M* const p = probabilities.data() + t * experts;
    const std::int64_t* const n = counts.data() + t / length * experts;
    const std::int64_t* const chosen = choices.data() + t * k;
    const M* const w = weights.data() + t * k;
    const M* const dw = dweights.data() + t * k;
    T* const dl = dlogits.data + t * dlogits.leading;
    if (!filled.has_token(t)) {
      for (index_t e = 0; e < experts; ++e) dl[e] = T(0);
      return;
    }
    const auto choices_of_sequence = static_cast<double>(k * filled.tokens_of(t / length));
    const M balance = static_cast<M>(balance_scale / (choices_of_sequence * all_tokens));
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

namespace {

// n(e) <- number of i < length with chosen[i] = e and counted(i), which is false where no expert is chosen.
template <class F>
NANOTRON_FUNCTION void count_stretch(const Row& row, index_t experts, const std::int64_t* chosen, index_t length,
                                     std::int64_t* n, const F& counted) {
  if constexpr (on_host) {
    row.for_each(experts, [=](const index_t e) { n[e] = 0; });
    for (index_t i = 0; i < length; ++i) {
      if (counted(i)) ++n[chosen[i]];
    }
  } else {
    row.for_each(experts, [=](const index_t e) {
      std::int64_t count = 0;
      for (index_t i = 0; i < length; ++i) count += chosen[i] == e && counted(i) ? 1 : 0;
      n[e] = count;
    });
  }
}

}  // namespace

void count_choices(Device& device, index_t top_k, Vector<const std::int64_t> choices, Matrix<std::int64_t> counts) {
  const KernelRegion kernel(device, "count_choices", reads(choices), writes(counts));
  const auto sequences = static_cast<index_t>(counts.extent(0)), experts = static_cast<index_t>(counts.extent(1));
  const index_t length = static_cast<index_t>(choices.extent(0)) / sequences;
  NANOTRON_REQUIRE(length % top_k == 0, "{} choices of a sequence, {} per token", length, top_k);
  for_each_row(device, "count_choices", sequences, KOKKOS_LAMBDA(const Row& row, const index_t s) {
    const std::int64_t* const chosen = choices.data() + s * length;
    count_stretch(row, experts, chosen, length, counts.data() + s * experts,
                  [=](const index_t i) { return chosen[i] != no_expert; });
  });
}

void mark_routed(Device& device, Vector<const std::int64_t> choices, Vector<std::int64_t> rows,
                 Vector<std::int64_t> sources) {
  const KernelRegion kernel(device, "mark_routed", reads(choices), writes(rows, sources));
  for_each_element(device, "mark_routed", static_cast<index_t>(rows.extent(0)), KOKKOS_LAMBDA(const index_t i) {
    rows.data()[i] = choices.data()[i] == no_expert ? -1 : 0;
    sources.data()[i] = 0;
  });
}

// Counting sort in three kernels: each stretch of choices counts its choices per expert; a prefix sum turns the counts
// into the first row of each stretch within an expert; each stretch numbers its choices.
void assign_rows(Device& device, Vector<const std::int64_t> choices, Vector<std::int64_t> rows,
                 Vector<std::int64_t> sources, Vector<std::int64_t> counts, Matrix<std::int64_t> stretches) {
  const KernelRegion kernel(device, "assign_rows", reads(choices, rows, choices, rows),
                            writes(rows, sources, stretches));
  const auto n = static_cast<index_t>(choices.extent(0)), experts = static_cast<index_t>(counts.extent(0));
  const index_t used = stretches_of(n);
  NANOTRON_REQUIRE(used <= static_cast<index_t>(stretches.extent(0)), "{} stretches, buffer for {}", used,
                   stretches.extent(0));
  for_each_row(device, "count_rows", used, KOKKOS_LAMBDA(const Row& row, const index_t s) {
    const index_t begin = s * choices_of_stretch, left = n - begin;
    const std::int64_t* const taken = rows.data() + begin;
    count_stretch(row, experts, choices.data() + begin, left < choices_of_stretch ? left : choices_of_stretch,
                  stretches.data() + s * experts, [=](const index_t i) { return taken[i] >= 0; });
  });
  for_each_element(device, "add_stretches", experts, KOKKOS_LAMBDA(const index_t e) {
    std::int64_t before = 0;
    for (index_t s = 0; s < used; ++s) {
      std::int64_t& first = stretches.data()[s * experts + e];
      const std::int64_t here = first;
      first = before;
      before += here;
    }
    counts.data()[e] = before;
  });
  for_each_row(device, "number_rows", used, KOKKOS_LAMBDA(const Row& row, const index_t s) {
    const index_t begin = s * choices_of_stretch, left = n - begin;
    const index_t end = begin + (left < choices_of_stretch ? left : choices_of_stretch);
    const std::int64_t* const chosen = choices.data();
    std::int64_t* const next = stretches.data() + s * experts;
    const auto number = [=](const index_t i, std::int64_t& at) {
      sources.data()[at] = i;
      rows.data()[i] = at++;
    };
    row.for_each(experts, [=](const index_t e) {
      for (index_t before = 0; before < e; ++before) next[e] += counts.data()[before];
      if constexpr (!on_host) {
        for (index_t i = begin; i < end; ++i) {
          if (chosen[i] == e && rows.data()[i] >= 0) number(i, next[e]);
        }
      }
    });
    if constexpr (on_host) {
      for (index_t i = begin; i < end; ++i) {
        if (rows.data()[i] >= 0) number(i, next[chosen[i]]);
      }
    }
  });
}

void expert_offsets(Device& device, Matrix<const std::int64_t> counts, Vector<std::int64_t> begin) {
  const KernelRegion kernel(device, "expert_offsets", reads(counts), writes(begin));
  const auto ranks = static_cast<index_t>(counts.extent(0)), experts = static_cast<index_t>(counts.extent(1));
  NANOTRON_REQUIRE(static_cast<index_t>(begin.extent(0)) == experts + 1, "{} offsets of {} experts", begin.extent(0),
                   experts);
  for_each_element(
      device, "expert_offsets", experts + 1, KOKKOS_LAMBDA(const index_t e) {
        std::int64_t rows = 0;
        for (index_t r = 0; r < ranks; ++r) {
          for (index_t before = 0; before < e; ++before) rows += counts.data()[r * experts + before];
        }
        begin.data()[e] = rows;
      });
}

void cut_rows(Device& device, index_t top_k, Vector<const std::int64_t> sources, Vector<const std::int64_t> counts,
              const SumOrder& tokens, Matrix<std::int64_t> cuts) {
  const KernelRegion kernel(device, "cut_rows", reads(sources, counts), writes(cuts));
  const index_t places = tokens.held + 1;
  for_each_element(device, "cut_rows", static_cast<index_t>(cuts.extent(0)) * places, KOKKOS_LAMBDA(const index_t i) {
    const index_t e = i / places;
    const int s = static_cast<int>(i % places);
    std::int64_t first = 0, rows = 0;
    for (index_t before = 0; before < e; ++before) first += counts.data()[before];
    if (s < tokens.held) {
      const index_t begin = tokens.terms(0, s).begin;
      while (rows < counts.data()[e] && sources.data()[first + rows] / top_k < begin) ++rows;
    } else {
      rows = counts.data()[e];
    }
    cuts.data()[i] = rows;
  });
}

void join_cuts(Device& device, Vector<const std::int64_t> of_ranks, index_t experts, index_t sequences,
               Matrix<std::int64_t> cuts) {
  const KernelRegion kernel(device, "join_cuts", reads(of_ranks), writes(cuts));
  const auto joined = static_cast<index_t>(cuts.extent(1)), all = static_cast<index_t>(of_ranks.extent(0));
  // all = sequences ranks experts (held + 1), joined = ranks held + 1.
  const index_t ranks = all / (sequences * experts) - (joined - 1), held = (joined - 1) / ranks;
  NANOTRON_REQUIRE(ranks * held + 1 == joined && sequences * ranks * experts * (held + 1) == all,
                   "{} cuts of {} experts and {} sequences in {}", all, experts, sequences, joined);
  for_each_element(device, "join_cuts", experts * sequences * joined, KOKKOS_LAMBDA(const index_t i) {
    const index_t e = i / (sequences * joined), s = i / joined % sequences, at = i % joined;
    const auto cut = [=](const index_t rank, const index_t place) {
      return of_ranks.data()[((s * ranks + rank) * experts + e) * (held + 1) + place];
    };
    const index_t rank = at / held < ranks ? at / held : ranks - 1;
    std::int64_t rows = cut(rank, at - rank * held);
    for (index_t before = 0; before < rank; ++before) rows += cut(before, held);
    cuts.data()[i] = rows;
  });
}

template <class T>
void gather_rows(Device& device, index_t top_k, Matrix<const T> x, Vector<const std::int64_t> sources, Matrix<T> rows) {
  const KernelRegion kernel(device, "gather_rows", reads(rows, sources), writes(rows));
  const auto hidden = static_cast<index_t>(x.extent(1));
  for_each_row(
      device, "gather_rows", static_cast<index_t>(rows.extent(0)), KOKKOS_LAMBDA(const Row& row, const index_t r) {
        const T* const from = x.data() + sources.data()[r] / top_k * hidden;
        T* const to = rows.data() + r * hidden;
        row.for_each(hidden, [=](const index_t c) { to[c] = from[c]; });
      });
}

template <class T>
void add_rows(Device& device, Matrix<const T> rows, Vector<const std::int64_t> row_of_choice, Matrix<T> y) {
  const KernelRegion kernel(device, "add_rows", reads(rows, row_of_choice, y), writes(y));
  using M = master_t<T>;
  const auto tokens = static_cast<index_t>(y.extent(0)), hidden = static_cast<index_t>(y.extent(1));
  const index_t k = tokens == 0 ? 0 : static_cast<index_t>(row_of_choice.extent(0)) / tokens;
  for_each_row(device, "add_rows", tokens, KOKKOS_LAMBDA(const Row& row, const index_t t) {
    const std::int64_t* const mine = row_of_choice.data() + t * k;
    T* const to = y.data() + t * hidden;
    row.for_each(hidden, [=](const index_t c) {
      M sum = static_cast<M>(to[c]);
      for (index_t j = 0; j < k; ++j) {
        if (mine[j] >= 0) sum += static_cast<M>(rows.data()[mine[j] * hidden + c]);
      }
      to[c] = static_cast<T>(sum);
    });
  });
}

template <class M>
void gather_values(Device& device, Vector<const M> of_choices, Vector<const std::int64_t> sources, Vector<M> of_rows) {
  const KernelRegion kernel(device, "gather_values", reads(of_rows, sources), writes(of_rows));
  for_each_element(device, "gather_values", static_cast<index_t>(of_rows.extent(0)), KOKKOS_LAMBDA(const index_t r) {
    of_rows.data()[r] = of_choices.data()[sources.data()[r]];
  });
}

template <class M>
void scatter_values(Device& device, Vector<const M> of_rows, Vector<const std::int64_t> row_of_choice,
                    Vector<M> of_choices) {
  const KernelRegion kernel(device, "scatter_values", reads(of_rows, row_of_choice), writes(of_choices));
  for_each_element(
      device, "scatter_values", static_cast<index_t>(of_choices.extent(0)), KOKKOS_LAMBDA(const index_t i) {
        const std::int64_t row = row_of_choice.data()[i];
        of_choices.data()[i] = row < 0 ? M(0) : of_rows.data()[row];
      });
}

template <class M>
void sigmoid_forward(Device& device, MatrixRef<const M> logits, Vector<M> gate) {
  const KernelRegion kernel(device, "sigmoid_forward", reads(gate), writes(gate));
  for_each_element(device, "sigmoid_forward", logits.rows, KOKKOS_LAMBDA(const index_t i) {
    gate.data()[i] = M(1) / (M(1) + exponential(-logits(i, 0)));
  });
}

template <class T>
void sigmoid_backward(Device& device, Vector<const master_t<T>> gate, Vector<const master_t<T>> dgate,
                      MatrixRef<T> dlogits) {
  const KernelRegion kernel(device, "sigmoid_backward", reads(gate, dgate), writes(dlogits));
  using M = master_t<T>;
  for_each_element(device, "sigmoid_backward", dlogits.rows, KOKKOS_LAMBDA(const index_t i) {
    const M g = gate.data()[i];
    dlogits(i, 0) = static_cast<T>(dgate.data()[i] * g * (M(1) - g));
  });
}

template <class M>
void add_router_sums(Device& device, const FilledPositions& filled, Matrix<const M> probabilities,
                     Vector<const std::int64_t> choices, Vector<const std::int64_t> row_of_choice, Vector<const M> z,
                     Matrix<const std::int64_t> counts, Vector<double> sums) {
  const KernelRegion kernel(device, "add_router_sums", reads(probabilities, choices, row_of_choice, z), writes(sums));
  const auto tokens = static_cast<index_t>(probabilities.extent(0)),
             experts = static_cast<index_t>(probabilities.extent(1));
  const auto n = static_cast<index_t>(choices.extent(0));
  const index_t length = tokens / static_cast<index_t>(counts.extent(0));
  for_each_row(device, "expert_sums", experts, KOKKOS_LAMBDA(const Row& row, const index_t e) {
    const double balance = row.template sum<double>(tokens, [=](const index_t t) {
      if (!filled.has_token(t)) return 0.0;
      const index_t s = t / length;
      const double share = static_cast<double>(filled.length) / static_cast<double>(filled.tokens_of(s));
      return static_cast<double>(counts.data()[s * experts + e]) *
             (static_cast<double>(probabilities.data()[t * experts + e]) * share);
    });
    const double chosen =
        row.template sum<double>(n, [=](const index_t i) { return choices.data()[i] == e ? 1.0 : 0.0; });
    row.for_each(1, [=](const index_t) {
      sums.data()[e] += balance;
      sums.data()[experts + e] += chosen;
    });
  });
  for_each_row(device, "router_sums", 1, KOKKOS_LAMBDA(const Row& row, const index_t) {
    const double squares = row.template sum<double>(tokens, [=](const index_t t) {
      const auto value = static_cast<double>(z.data()[t]);
      return value * value;
    });
    const double without = row.template sum<double>(n, [=](const index_t i) {
      return choices.data()[i] != no_expert && row_of_choice.data()[i] < 0 ? 1.0 : 0.0;
    });
    row.for_each(1, [=](const index_t) {
      sums.data()[2 * experts] += squares;
      sums.data()[2 * experts + 1] += without;
    });
  });
}

void mark_overflow(Device& device, const Routing& routing, const SequencePlaces& places, const FilledPositions& filled,
                   double factor, Vector<const std::int64_t> choices, Vector<std::int64_t> rows) {
  const KernelRegion kernel(device, "mark_overflow", reads(choices, rows), writes(rows));
  const index_t experts = routing.experts, k = routing.top_k;
  const auto positions = static_cast<index_t>(places.base.extent(0));
  for_each_element(device, "mark_overflow", places.sequences * experts, KOKKOS_LAMBDA(const index_t i) {
    const index_t s = i / experts, e = i % experts;
    const index_t capacity = expert_capacity(factor, routing, filled.tokens_of(s));
    index_t taken = 0;
    for (index_t p = 0; p < positions; ++p) {
      const index_t at = places.base.data()[p] + s * places.step.data()[p];
      for (index_t j = 0; j < k; ++j) {
        if (choices.data()[at + j] != e) continue;
        ++taken;
        const index_t own = places.own.data()[p];
        if (own >= 0) rows.data()[(s * places.length + own) * k + j] = taken > capacity ? -1 : 0;
      }
    }
  });
}

#define NANOTRON_INSTANTIATE(M)                                                                                        \
  template void route_forward<M>(Device&, const Routing&, const FilledPositions&, MatrixRef<const M>, Matrix<M>,       \
                                 Vector<std::int64_t>, Vector<M>, Vector<M>);                                          \
  template void gather_values<M>(Device&, Vector<const M>, Vector<const std::int64_t>, Vector<M>);                     \
  template void scatter_values<M>(Device&, Vector<const M>, Vector<const std::int64_t>, Vector<M>);                    \
  template void sigmoid_forward<M>(Device&, MatrixRef<const M>, Vector<M>);                                            \
  template void add_router_sums<M>(Device&, const FilledPositions&, Matrix<const M>, Vector<const std::int64_t>,       \
                                   Vector<const std::int64_t>, Vector<const M>, Matrix<const std::int64_t>,            \
                                   Vector<double>);
NANOTRON_FOR_MASTER_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE
#define NANOTRON_INSTANTIATE(T)                                                                                        \
  template void route_backward<T>(Device&, const Routing&, const FilledPositions&, Matrix<const master_t<T>>,          \
                                  Vector<const std::int64_t>, Vector<const master_t<T>>, Vector<const master_t<T>>,    \
                                  Vector<const master_t<T>>, Matrix<const std::int64_t>, const RouterScales&,          \
                                  MatrixRef<T>);                                                                       \
  template void gather_rows<T>(Device&, index_t, Matrix<const T>, Vector<const std::int64_t>, Matrix<T>);              \
  template void add_rows<T>(Device&, Matrix<const T>, Vector<const std::int64_t>, Matrix<T>);                          \
  template void sigmoid_backward<T>(Device&, Vector<const master_t<T>>, Vector<const master_t<T>>, MatrixRef<T>);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::kernels
