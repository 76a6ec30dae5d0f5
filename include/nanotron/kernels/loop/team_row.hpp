#pragma once

// The loops within one row, by the threads of one team of a GPU. The order of sums is that of Kokkos' team reduction.

#include "nanotron/kernels/loop/chunk.hpp"

template <class M, int n>
struct Kokkos::reduction_identity<nanotron::kernels::Chunk<M, n>> {
  KOKKOS_FORCEINLINE_FUNCTION static nanotron::kernels::Chunk<M, n> sum() { return {}; }
};

namespace nanotron::kernels {

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
  template <class M, int n, class F>
  KOKKOS_FUNCTION Chunk<M, n> sums(index_t count, F&& f) const {
    Chunk<M, n> result{};
    Kokkos::parallel_reduce(
        Kokkos::TeamThreadRange(member, count), [&](const index_t i, Chunk<M, n>& partial) { partial += f(i); },
        result);
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

}  // namespace nanotron::kernels
