#include "nanotron/kernels/moe/expert_rows.hpp"

#include "nanotron/kernels/loop/loop.hpp"
#include "nanotron/kernels/moe/routing.hpp"

namespace nanotron::kernels {
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

// to (columns) += the rows mine[j] >= 0 of `rows`, in order of j < k, summed in M. On the host row by row for a stretch
// of columns, so that the compiler vectorises.
template <class M, class T>
NANOTRON_FUNCTION void add_to_token(const Row& row, const T* rows, const std::int64_t* mine, index_t k, index_t columns,
                                    T* to) {
  if constexpr (on_host) {
    constexpr index_t stretch = 256;
    M sums[stretch];
    for (index_t begin = 0; begin < columns; begin += stretch) {
      const index_t n = columns - begin < stretch ? columns - begin : stretch;
      row.for_each(n, [&](const index_t c) { sums[c] = static_cast<M>(to[begin + c]); });
      for (index_t j = 0; j < k; ++j) {
        if (mine[j] < 0) continue;
        const T* const from = rows + mine[j] * columns + begin;
        row.for_each(n, [&](const index_t c) { sums[c] += static_cast<M>(from[c]); });
      }
      row.for_each(n, [&](const index_t c) { to[begin + c] = static_cast<T>(sums[c]); });
    }
  } else {
    row.for_each(columns, [=](const index_t c) {
      M sum = static_cast<M>(to[c]);
      for (index_t j = 0; j < k; ++j) {
        if (mine[j] >= 0) sum += static_cast<M>(rows[mine[j] * columns + c]);
      }
      to[c] = static_cast<T>(sum);
    });
  }
}

}  // namespace

void count_assignments(Device& device, index_t top_k, Vector<const std::int64_t> assignments,
                       Matrix<std::int64_t> counts) {
  const KernelRegion kernel(device, "count_assignments", reads(assignments), writes(counts));
  const auto sequences = static_cast<index_t>(counts.extent(0)), experts = static_cast<index_t>(counts.extent(1));
  const index_t length = static_cast<index_t>(assignments.extent(0)) / sequences;
  NANOTRON_REQUIRE(length % top_k == 0, "{} assignments of a sequence, {} per token", length, top_k);
  for_each_row(
      device, "count_assignments", sequences, KOKKOS_LAMBDA(const Row& row, const index_t s) {
        const std::int64_t* const chosen = assignments.data() + s * length;
        count_stretch(row, experts, chosen, length, counts.data() + s * experts,
                      [=](const index_t i) { return chosen[i] != no_expert; });
      });
}

void mark_routed(Device& device, Vector<const std::int64_t> assignments, const Range& own, Vector<std::int64_t> rows,
                 Vector<std::int64_t> sources) {
  const KernelRegion kernel(device, "mark_routed", reads(assignments), writes(rows, sources));
  for_each_element(
      device, "mark_routed", static_cast<index_t>(rows.extent(0)), KOKKOS_LAMBDA(const index_t i) {
        const std::int64_t row = own.contains(i) ? 0 : row_of_other_rank;
        rows.data()[i] = assignments.data()[i] == no_expert ? no_row : row;
        sources.data()[i] = 0;
      });
}

// Counting sort in three kernels: each stretch of assignments counts its assignments per expert; a prefix sum turns the
// counts into the first row of each stretch within an expert; each stretch numbers its assignments.
void assign_rows(Device& device, Vector<const std::int64_t> assignments, Vector<std::int64_t> rows,
                 Vector<std::int64_t> sources, Vector<std::int64_t> counts, Matrix<std::int64_t> stretches) {
  const KernelRegion kernel(device, "assign_rows", reads(assignments, rows, assignments, rows),
                            writes(rows, sources, stretches));
  const auto n = static_cast<index_t>(assignments.extent(0)), experts = static_cast<index_t>(counts.extent(0));
  const index_t used = stretches_of(n);
  NANOTRON_REQUIRE(used <= static_cast<index_t>(stretches.extent(0)), "{} stretches, buffer for {}", used,
                   stretches.extent(0));
  for_each_row(
      device, "count_rows", used, KOKKOS_LAMBDA(const Row& row, const index_t s) {
        const index_t begin = s * assignments_of_stretch, left = n - begin;
        const std::int64_t* const taken = rows.data() + begin;
        count_stretch(row, experts, assignments.data() + begin,
                      left < assignments_of_stretch ? left : assignments_of_stretch, stretches.data() + s * experts,
                      [=](const index_t i) { return taken[i] >= 0; });
      });
  for_each_element(
      device, "add_stretches", experts, KOKKOS_LAMBDA(const index_t e) {
        std::int64_t before = 0;
        for (index_t s = 0; s < used; ++s) {
          std::int64_t& first = stretches.data()[s * experts + e];
          const std::int64_t here = first;
          first = before;
          before += here;
        }
        counts.data()[e] = before;
      });
  for_each_row(
      device, "number_rows", used, KOKKOS_LAMBDA(const Row& row, const index_t s) {
        const index_t begin = s * assignments_of_stretch, left = n - begin;
        const index_t end = begin + (left < assignments_of_stretch ? left : assignments_of_stretch);
        const std::int64_t* const chosen = assignments.data();
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

void expert_offsets(Device& device, Matrix<const std::int64_t> counts, index_t parts, Vector<std::int64_t> begin) {
  const KernelRegion kernel(device, "expert_offsets", reads(counts), writes(begin));
  const auto ranks = static_cast<index_t>(counts.extent(0)), of_rank = static_cast<index_t>(counts.extent(1));
  const index_t experts = static_cast<index_t>(begin.extent(0)) - 1;
  NANOTRON_REQUIRE(experts * parts == of_rank, "{} counts of {} experts in {} parts", of_rank, experts, parts);
  for_each_element(
      device, "expert_offsets", experts + 1, KOKKOS_LAMBDA(const index_t e) {
        std::int64_t rows = 0;
        for (index_t r = 0; r < ranks; ++r) {
          for (index_t before = 0; before < e * parts; ++before) rows += counts.data()[r * of_rank + before];
        }
        begin.data()[e] = rows;
      });
}

void find_places(Device& device, Vector<const std::int64_t> counts, index_t experts, index_t parts,
                 Vector<std::int64_t> places) {
  const KernelRegion kernel(device, "find_places", reads(counts), writes(places));
  const auto blocks = static_cast<index_t>(counts.extent(0));
  const index_t of_rank = experts * parts, ranks = blocks / of_rank;
  NANOTRON_REQUIRE(ranks * of_rank == blocks, "{} counts of {} experts in {} parts", blocks, experts, parts);
  const std::int64_t* const n = counts.data();
  std::int64_t* const to = places.data();
  for_each_row(
      device, "find_places", blocks, KOKKOS_LAMBDA(const Row& row, const index_t block) {
        // From the place of a block in the messages to that among the sorted ones.
        const auto sorted = [=](const index_t b) { return b % of_rank * ranks + b / of_rank; };
        const index_t mine = sorted(block);
        // Whole numbers below 2^53.
        const double arrived = row.template sum<double>(
            blocks, [=](const index_t b) { return b < block ? static_cast<double>(n[b]) : 0.0; });
        const double before = row.template sum<double>(
            blocks, [=](const index_t b) { return sorted(b) < mine ? static_cast<double>(n[b]) : 0.0; });
        const auto first = static_cast<std::int64_t>(arrived), place = static_cast<std::int64_t>(before);
        row.for_each(n[block], [=](const index_t i) { to[first + i] = place + i; });
      });
}

template <class T>
void place_rows(Device& device, Matrix<const T> from, Vector<const std::int64_t> places, Matrix<T> to) {
  const KernelRegion kernel(device, "place_rows", reads(from, places), writes(from));
  const auto hidden = static_cast<index_t>(from.extent(1));
  for_each_row(
      device, "place_rows", static_cast<index_t>(from.extent(0)), KOKKOS_LAMBDA(const Row& row, const index_t r) {
        const T* const x = from.data() + r * hidden;
        T* const y = to.data() + places.data()[r] * hidden;
        row.for_each(hidden, [=](const index_t c) { y[c] = x[c]; });
      });
}

template <class M>
void place_values(Device& device, Vector<const M> from, Vector<const std::int64_t> places, Vector<M> to) {
  const KernelRegion kernel(device, "place_values", reads(from, places), writes(from));
  for_each_element(
      device, "place_values", static_cast<index_t>(from.extent(0)),
      KOKKOS_LAMBDA(const index_t r) { to.data()[places.data()[r]] = from.data()[r]; });
}

void cut_rows(Device& device, index_t top_k, Vector<const std::int64_t> sources, Vector<const std::int64_t> counts,
              const SumOrder& tokens, Matrix<std::int64_t> cuts) {
  const KernelRegion kernel(device, "cut_rows", reads(sources, counts), writes(cuts));
  const index_t places = tokens.shards_on_rank + 1;
  for_each_element(
      device, "cut_rows", static_cast<index_t>(cuts.extent(0)) * places, KOKKOS_LAMBDA(const index_t i) {
        const index_t e = i / places;
        const int s = static_cast<int>(i % places);
        std::int64_t first = 0, rows = 0;
        for (index_t before = 0; before < e; ++before) first += counts.data()[before];
        if (s < tokens.shards_on_rank) {
          const index_t begin = tokens.terms(0, s).begin;
          while (rows < counts.data()[e] && sources.data()[first + rows] / top_k < begin) ++rows;
        } else {
          rows = counts.data()[e];
        }
        cuts.data()[i] = rows;
      });
}

void join_cuts(Device& device, Vector<const std::int64_t> of_ranks, index_t experts, index_t sequences, index_t slices,
               Matrix<std::int64_t> cuts) {
  const KernelRegion kernel(device, "join_cuts", reads(of_ranks), writes(cuts));
  const auto joined = static_cast<index_t>(cuts.extent(1)), all = static_cast<index_t>(of_ranks.extent(0));
  // all = sequences ranks slices experts (held + 1), joined = ranks held + 1.
  const index_t ranks = all / (sequences * slices * experts) - (joined - 1), held = (joined - 1) / ranks;
  NANOTRON_REQUIRE(ranks * held + 1 == joined && sequences * ranks * slices * experts * (held + 1) == all,
                   "{} cuts of {} experts, {} sequences and {} slices in {}", all, experts, sequences, slices, joined);
  for_each_element(
      device, "join_cuts", experts * sequences * joined, KOKKOS_LAMBDA(const index_t i) {
        const index_t e = i / (sequences * joined), s = i / joined % sequences, at = i % joined;
        const auto cut = [=](const index_t rank, const index_t place) {
          std::int64_t sum = 0;
          for (index_t t = 0; t < slices; ++t)
            sum += of_ranks.data()[(((s * ranks + rank) * slices + t) * experts + e) * (held + 1) + place];
          return sum;
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
void add_rows(Device& device, Matrix<const T> rows, Vector<const std::int64_t> row_of_assignment, Matrix<T> y) {
  const KernelRegion kernel(device, "add_rows", reads(rows, row_of_assignment, y), writes(y));
  using M = master_t<T>;
  const auto tokens = static_cast<index_t>(y.extent(0)), hidden = static_cast<index_t>(y.extent(1));
  const index_t k = tokens == 0 ? 0 : static_cast<index_t>(row_of_assignment.extent(0)) / tokens;
  for_each_row(
      device, "add_rows", tokens, KOKKOS_LAMBDA(const Row& row, const index_t t) {
        add_to_token<M>(row, rows.data(), row_of_assignment.data() + t * k, k, hidden, y.data() + t * hidden);
      });
}

template <class M>
void gather_values(Device& device, Vector<const M> of_assignments, Vector<const std::int64_t> sources,
                   Vector<M> of_rows) {
  const KernelRegion kernel(device, "gather_values", reads(of_rows, sources), writes(of_rows));
  for_each_element(
      device, "gather_values", static_cast<index_t>(of_rows.extent(0)),
      KOKKOS_LAMBDA(const index_t r) { of_rows.data()[r] = of_assignments.data()[sources.data()[r]]; });
}

template <class M>
void scatter_values(Device& device, Vector<const M> of_rows, Vector<const std::int64_t> row_of_assignment,
                    Vector<M> of_assignments) {
  const KernelRegion kernel(device, "scatter_values", reads(of_rows, row_of_assignment), writes(of_assignments));
  for_each_element(
      device, "scatter_values", static_cast<index_t>(of_assignments.extent(0)), KOKKOS_LAMBDA(const index_t i) {
        const std::int64_t row = row_of_assignment.data()[i];
        of_assignments.data()[i] = row < 0 ? M(0) : of_rows.data()[row];
      });
}

#define NANOTRON_INSTANTIATE(M)                                                                    \
  template void place_values<M>(Device&, Vector<const M>, Vector<const std::int64_t>, Vector<M>);  \
  template void gather_values<M>(Device&, Vector<const M>, Vector<const std::int64_t>, Vector<M>); \
  template void scatter_values<M>(Device&, Vector<const M>, Vector<const std::int64_t>, Vector<M>);
NANOTRON_FOR_MASTER_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE
#define NANOTRON_INSTANTIATE(T)                                                                           \
  template void place_rows<T>(Device&, Matrix<const T>, Vector<const std::int64_t>, Matrix<T>);           \
  template void gather_rows<T>(Device&, index_t, Matrix<const T>, Vector<const std::int64_t>, Matrix<T>); \
  template void add_rows<T>(Device&, Matrix<const T>, Vector<const std::int64_t>, Matrix<T>);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::kernels
