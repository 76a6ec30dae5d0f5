#pragma once

// The loops within one row, by the threads of one team of a GPU: a whole number of warps. A sum runs over the elements
// of each thread, the lanes of a warp in halves, then the warps in order; or in the order of a host.

#include "nanotron/kernels/loop/lane_sum.hpp"

namespace nanotron::kernels {

/// Every thread gets the result of sum and max.
struct TeamRow {
  using Member = Kokkos::TeamPolicy<ExecutionSpace>::member_type;
  const Member& member;
  RowOrder order = RowOrder::threads;

  template <class F>
  KOKKOS_FUNCTION void for_each(index_t n, F&& f) const {
    each(n, f);
    member.team_barrier();
  }
  template <class T, class F>
  KOKKOS_FUNCTION void for_each_chunk(index_t n, F&& f) const {
    each_chunk<T>(n, f);
    member.team_barrier();
  }
  template <class T, class F>
  KOKKOS_FUNCTION void for_each_chunk_of(index_t blocks, index_t n, F&& f) const {
    const auto per_block = static_cast<std::uint32_t>(chunk_count<T>(n));  // divisions of 64 bits are slow on a GPU
    for_each(blocks * per_block, [&](const index_t i) {
      const auto at = static_cast<std::uint32_t>(i);
      at_chunk<T>(n, at % per_block, [&](const index_t c, const auto width) { f(at / per_block, c, width); });
    });
  }
  KOKKOS_FUNCTION void barrier() const { member.team_barrier(); }
  template <class M, class F>
  KOKKOS_FUNCTION M sum(index_t n, F&& f) const {
    if (order == RowOrder::lanes) return sum_of_lanes(member.team_rank(), n, M(0), f);
    M part = 0;
    each(n, [&](const index_t i) { part += f(i); });
    return sum_of_threads(part);
  }
  template <class M, int n, class F>
  KOKKOS_FUNCTION Chunk<M, n> sums(index_t count, F&& f) const {
    if (order == RowOrder::lanes) return sum_of_lanes(member.team_rank(), count, Chunk<M, n>{}, f);
    Chunk<M, n> part{};
    each(count, [&](const index_t i) { part += f(i); });
    return sum_of_threads(part);
  }
  template <class T, class F>
  KOKKOS_FUNCTION master_t<T> sum_chunks(index_t n, F&& f) const {
    if (order == RowOrder::lanes)
      return sum_of_lanes(member.team_rank(), n, master_t<T>(0), [&](const index_t c) { return f(c, Width<1>{}); });
    master_t<T> part = 0;
    each_chunk<T>(n, [&](const index_t c, const auto width) { part += f(c, width); });
    return sum_of_threads(part);
  }
  template <class T, class F>
  KOKKOS_FUNCTION master_t<T> max_chunks(index_t n, master_t<T> lowest, F&& f) const {
    master_t<T> most = lowest;
    each_chunk<T>(n, [&](const index_t c, const auto width) { keep_larger(most, f(c, width)); });
    return max_of_threads(most);
  }
  template <class M, class F>
  KOKKOS_FUNCTION M max(index_t n, M lowest, F&& f) const {
    M most = lowest;
    each(n, [&](const index_t i) { keep_larger(most, f(i)); });
    return max_of_threads(most);
  }

  /// f(c, Width) for the chunks of the calling thread.
  template <class T, class F>
  KOKKOS_FUNCTION void each_chunk(index_t n, F&& f) const {
    each(chunk_count<T>(n), [&](const index_t i) { at_chunk<T>(n, i, f); });
  }
  /// Reduces one value of each thread, with the same bits for all. V: a number, or a Chunk.
  template <class V>
  KOKKOS_FUNCTION V sum_of_threads(const V& value) const {
    return over_threads(value, [](V& sum, const V& more) { sum += more; });
  }
  template <class M>
  KOKKOS_FUNCTION M max_of_threads(M value) const {
    return over_threads(value, [](M& most, const M& more) { keep_larger(most, more); });
  }

 private:
  template <class F>
  KOKKOS_FUNCTION void each(index_t n, F&& f) const {
    for (index_t i = member.team_rank(); i < n; i += member.team_size()) f(i);
  }
  template <class M>
  KOKKOS_FUNCTION static void keep_larger(M& most, M value) {
    if (most < value) most = value;
  }
  // Two barriers; Kokkos' own takes one for every four warps, and one more. Off a GPU a team is one thread.
  template <class V, class Join>
  KOKKOS_FUNCTION V over_threads(V value, [[maybe_unused]] const Join& join) const {
#if defined(NANOTRON_ON_GPU)
    constexpr int lanes = gpu_warp_size;
    for (int other = lanes / 2; other > 0; other /= 2) join(value, value_of_lane(value, other));
    const int warps = member.team_size() / lanes;
    if (warps == 1) return value;
    __shared__ V of_warp[1024 / lanes];
    __syncthreads();  // all have read what was here before
    if (member.team_rank() % lanes == 0) of_warp[member.team_rank() / lanes] = value;
    __syncthreads();
    value = of_warp[0];
    for (int warp = 1; warp < warps; ++warp) join(value, of_warp[warp]);
#endif
    return value;
  }
};

/// f(row, i) of row i, by the team with this number.
template <class F>
struct RowOfTeam {
  F f;
  RowOrder order;
  KOKKOS_FUNCTION void operator()(const TeamRow::Member& team) const { f(TeamRow{team, order}, team.league_rank()); }
};

}  // namespace nanotron::kernels
