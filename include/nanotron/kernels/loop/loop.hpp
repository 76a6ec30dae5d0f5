#pragma once

// How the loops of all kernels are run. A kernel is written once, as the work on one row or one
// element; what carries it is chosen here:
//
//   host   one RangePolicy iteration a row (with an OpenMP backend a row stays on one core), and
//          inside it plain loops that the compiler turns into vector instructions. MDRangePolicy
//          was measured up to 4x slower than this and keeps loops from vectorising.
//   GPU    one team a row, its threads along the row, so that loads coalesce.
//
// Sums of a row run over a fixed number of lanes that are then folded in halves: the order is the
// same on every machine and in every build, and the compiler needs no licence to reorder in order
// to vectorise.

#include <string>
#include <type_traits>

#include "nanotron/tensor/device.hpp"
#include "nanotron/tensor/tensor.hpp"

namespace nanotron::kernels {

inline constexpr bool on_host = std::is_same_v<MemorySpace, Kokkos::HostSpace>;

/// The loops within one row, on one core.
struct HostRow {
  /// Two to four registers of any vector width hide the latency of the addition.
  static constexpr int lanes = 32;

  /// f(i) for i < n, where no iteration reads what another one writes.
  template <class F>
  void for_each(index_t n, F&& f) const {
#pragma GCC ivdep
    for (index_t i = 0; i < n; ++i) f(i);
  }
  /// What was read before it is read before anything after it is written.
  void barrier() const {}

  /// Sum of f(i) in M, an M of zero for n = 0.
  template <class M, class F>
  M sum(index_t n, F&& f) const {
    return fold<M>(n, M(0), f, [](M a, M b) { return a + b; });
  }
  /// Largest f(i), or `lowest`.
  template <class M, class F>
  M max(index_t n, M lowest, F&& f) const {
    return fold<M>(n, lowest, f, [](M a, M b) { return a < b ? b : a; });
  }

 private:
  template <class M, class F, class Combine>
  static M fold(index_t n, M start, F&& f, Combine combine) {
    M lane[lanes];
    for (int l = 0; l < lanes; ++l) lane[l] = start;
    index_t i = 0;
    for (; i + lanes <= n; i += lanes) {
#pragma GCC ivdep
      for (int l = 0; l < lanes; ++l) lane[l] = combine(lane[l], f(i + l));
    }
    for (int l = 0; i + l < n; ++l) lane[l] = combine(lane[l], f(i + l));
    for (int width = lanes / 2; width > 0; width /= 2) {
      for (int l = 0; l < width; ++l) lane[l] = combine(lane[l], lane[l + width]);
    }
    return lane[0];
  }
};

/// The loops within one row, by the threads of one team. Results of sums are known to all of them.
struct TeamRow {
  using Member = Kokkos::TeamPolicy<ExecutionSpace>::member_type;
  const Member& member;

  template <class F>
  KOKKOS_FUNCTION void for_each(index_t n, F&& f) const {
    Kokkos::parallel_for(Kokkos::TeamThreadRange(member, n), f);
    member.team_barrier();
  }
  KOKKOS_FUNCTION void barrier() const { member.team_barrier(); }
  template <class M, class F>
  KOKKOS_FUNCTION M sum(index_t n, F&& f) const {
    M result = 0;
    Kokkos::parallel_reduce(
        Kokkos::TeamThreadRange(member, n), [&](const index_t i, M& partial) { partial += f(i); },
        result);
    return result;
  }
  template <class M, class F>
  KOKKOS_FUNCTION M max(index_t n, M lowest, F&& f) const {
    M result = lowest;
    Kokkos::parallel_reduce(
        Kokkos::TeamThreadRange(member, n),
        [&](const index_t i, M& partial) {
          const M value = f(i);
          if (partial < value) partial = value;
        },
        Kokkos::Max<M>(result));
    return n > 0 && lowest < result ? result : lowest;
  }
};

using Row = std::conditional_t<on_host, HostRow, TeamRow>;

/// Kokkos takes labels as std::string, which allocates at every launch. F is the type of one closure, so it
/// stands for one label, which is made at its first launch and kept.
template <class F>
const std::string& kept_label(const char* label) {
  static const std::string kept(label);
  return kept;
}

/// f(row, i) for i < rows. F takes (const Row&, index_t).
template <class F>
void for_each_row(const Device& device, const char* label, index_t rows, const F& f) {
  if constexpr (on_host) {
    using Policy = Kokkos::RangePolicy<ExecutionSpace, Kokkos::IndexType<index_t>>;
    Kokkos::parallel_for(kept_label<F>(label), Policy(device.exec(), 0, rows),
                         [=](const index_t i) { f(HostRow{}, i); });
  } else {
    using Policy = Kokkos::TeamPolicy<ExecutionSpace>;
    Kokkos::parallel_for(
        kept_label<F>(label), Policy(device.exec(), static_cast<int>(rows), Kokkos::AUTO),
        KOKKOS_LAMBDA(const Policy::member_type& team) { f(TeamRow{team}, team.league_rank()); });
  }
}

/// f(i) for i < n, where no iteration reads what another one writes.
template <class F>
void for_each_element(const Device& device, const char* label, index_t n, const F& f) {
  using Policy = Kokkos::RangePolicy<ExecutionSpace, Kokkos::IndexType<index_t>>;
  if constexpr (on_host) {
    constexpr index_t piece = 4096;  // elements: long enough to vectorise, short enough to balance
    Kokkos::parallel_for(kept_label<F>(label), Policy(device.exec(), 0, (n + piece - 1) / piece),
                         [=](const index_t p) {
                           const F body = f;  // a local copy: its members then live in registers
                           const index_t end = n < (p + 1) * piece ? n : (p + 1) * piece;
#pragma GCC ivdep
                           for (index_t i = p * piece; i < end; ++i) body(i);
                         });
  } else {
    Kokkos::parallel_for(kept_label<F>(label), Policy(device.exec(), 0, n), f);
  }
}

/// Sum of f(i) for i < n in integers, whose order changes nothing. On the host when it returns.
template <class I, class F>
I sum_of_elements(const Device& device, const char* label, index_t n, const F& f) {
  static_assert(std::is_integral_v<I>);
  using Policy = Kokkos::RangePolicy<ExecutionSpace, Kokkos::IndexType<index_t>>;
  I result = 0;
  Kokkos::parallel_reduce(
      kept_label<F>(label), Policy(device.exec(), 0, n),
      KOKKOS_LAMBDA(const index_t i, I& sum) { sum += f(i); }, result);
  return result;
}

}  // namespace nanotron::kernels
