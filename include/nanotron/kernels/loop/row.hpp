#pragma once

// The loops within one row of a kernel: on the host by one core, on a GPU by the threads of one team.
//
// On the host, sums of a row run over 32 lanes that are then folded in halves: the order is the same on every
// machine and in every build, and the compiler vectorises without -ffast-math. On a GPU the order is that of
// Kokkos' team reduction.

#include "nanotron/kernels/loop/chunk.hpp"

namespace nanotron::kernels {

/// The loops within one row, on one core.
struct HostRow {
  /// Two or more vector registers, which hide the latency of the addition.
  static constexpr int lanes = 32;

  /// f(i) for i < n, where no iteration reads what another one writes.
  template <class F>
  void for_each(index_t n, F&& f) const {
#pragma GCC ivdep
    for (index_t i = 0; i < n; ++i) f(i);
  }
  /// f(c, Width) for chunks of T that cover [0, n).
  template <class T, class F>
  void for_each_chunk(index_t n, F&& f) const {
    for_each(n, [&](const index_t c) { f(c, Width<1>{}); });
  }
  /// f(block, c, Width) for `blocks` blocks of n elements each.
  template <class T, class F>
  void for_each_chunk_of(index_t blocks, index_t n, F&& f) const {
    for (index_t block = 0; block < blocks; ++block) {
      for_each(n, [&](const index_t c) { f(block, c, Width<1>{}); });
    }
  }
  /// Reads before it complete before writes after it.
  void barrier() const {}

  /// Sum of f(i) in M; 0 for n = 0.
  template <class M, class F>
  M sum(index_t n, F&& f) const {
    return fold<M>(n, M(0), f, [](M a, M b) { return a + b; });
  }
  /// Sum of f(c, Width), the sum of a chunk of T; 0 for n = 0.
  template <class T, class F>
  master_t<T> sum_chunks(index_t n, F&& f) const {
    return sum<master_t<T>>(n, [&](const index_t c) { return f(c, Width<1>{}); });
  }
  /// max of f(i) and `lowest`.
  template <class M, class F>
  M max(index_t n, M lowest, F&& f) const {
    return fold<M>(n, lowest, f, [](M a, M b) { return a < b ? b : a; });
  }
  /// max of f(c, Width), the max of a chunk of T, and `lowest`.
  template <class T, class F>
  master_t<T> max_chunks(index_t n, master_t<T> lowest, F&& f) const {
    return max<master_t<T>>(n, lowest, [&](const index_t c) { return f(c, Width<1>{}); });
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

/// The loops within one row, by the threads of one team. Every thread gets the result of sum and max.
struct TeamRow {
  using Member = Kokkos::TeamPolicy<ExecutionSpace>::member_type;
  const Member& member;

  template <class F>
  KOKKOS_FUNCTION void for_each(index_t n, F&& f) const {
    Kokkos::parallel_for(Kokkos::TeamThreadRange(member, n), f);
    member.team_barrier();
  }
  template <class T, class F>
  KOKKOS_FUNCTION void for_each_chunk(index_t n, F&& f) const {
    for_each(chunk_count<T>(n), [&](const index_t i) { at_chunk<T>(n, i, f); });
  }
  template <class T, class F>
  KOKKOS_FUNCTION void for_each_chunk_of(index_t blocks, index_t n, F&& f) const {
    const auto each = static_cast<std::uint32_t>(chunk_count<T>(n));  // divisions of 64 bits are slow on a GPU
    for_each(blocks * each, [&](const index_t i) {
      const auto at = static_cast<std::uint32_t>(i);
      at_chunk<T>(n, at % each, [&](const index_t c, const auto width) { f(at / each, c, width); });
    });
  }
  KOKKOS_FUNCTION void barrier() const { member.team_barrier(); }
  template <class M, class F>
  KOKKOS_FUNCTION M sum(index_t n, F&& f) const {
    M result = 0;
    Kokkos::parallel_reduce(
        Kokkos::TeamThreadRange(member, n), [&](const index_t i, M& partial) { partial += f(i); }, result);
    return result;
  }
  template <class T, class F>
  KOKKOS_FUNCTION master_t<T> sum_chunks(index_t n, F&& f) const {
    using M = master_t<T>;
    return sum<M>(chunk_count<T>(n), [&](const index_t i) {
      M part;
      at_chunk<T>(n, i, [&](const index_t c, const auto width) { part = f(c, width); });
      return part;
    });
  }
  template <class T, class F>
  KOKKOS_FUNCTION master_t<T> max_chunks(index_t n, master_t<T> lowest, F&& f) const {
    using M = master_t<T>;
    return max<M>(chunk_count<T>(n), lowest, [&](const index_t i) {
      M part;
      at_chunk<T>(n, i, [&](const index_t c, const auto width) { part = f(c, width); });
      return part;
    });
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

}  // namespace nanotron::kernels
