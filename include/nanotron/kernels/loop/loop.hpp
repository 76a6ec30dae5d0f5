#pragma once

// How all kernels run their loops. A kernel is written once, as the work on one row or one element;
// the Kokkos policy is chosen here:
//
//   host   one RangePolicy iteration per row (with OpenMP a row stays on one core), and inside it
//          plain loops that the compiler vectorises. MDRangePolicy was measured up to 4x slower
//          and keeps loops from vectorising.
//   GPU    one team per row, its threads along the row, so that loads coalesce.
//   plan   nothing: the launch is counted (Device::planning).

#include <algorithm>
#include <limits>
#include <string>
#include <type_traits>

#include "nanotron/base/error.hpp"
#include "nanotron/base/independent_iterations.hpp"
#include "nanotron/kernels/loop/row.hpp"
#include "nanotron/tensor/kernel_region.hpp"

namespace nanotron::kernels {

/// A range of elements or rows. (The index type that Kokkos chooses by itself has 32 bits on a GPU.)
using RangePolicy = Kokkos::RangePolicy<ExecutionSpace, Kokkos::IndexType<index_t>>;

/// A team for each row, on a GPU: at most 2^31 - 1.
using TeamPolicy = Kokkos::TeamPolicy<ExecutionSpace>;
template <class Threads = decltype(Kokkos::AUTO)>
TeamPolicy team_policy(const Device& device, index_t rows, const Threads& threads = Kokkos::AUTO) {
  NANOTRON_REQUIRE(rows <= std::numeric_limits<int>::max(), "a kernel of {} rows", rows);
  return {device.exec(), static_cast<int>(rows), threads};
}
/// Threads of a team for loops over the chunks of a row of T: whole warps, up to 512 threads, so that few are idle in
/// the last iteration.
template <class T>
int team_threads(index_t columns) {
  constexpr index_t lanes = gpu_warp_size, most = 512 / lanes, tries = 4;
  const index_t warps = std::max<index_t>(1, (chunk_count<T>(columns) + lanes - 1) / lanes);
  const index_t fewest = (warps + most - 1) / most;
  index_t best = most, least = std::numeric_limits<index_t>::max();
  for (index_t turns = fewest; turns < fewest + tries; ++turns) {
    const index_t each = (warps + turns - 1) / turns;
    if (each * turns < least) least = each * turns, best = each;
  }
  return static_cast<int>(best * lanes);
}

/// Kokkos takes labels as std::string, which would allocate at every launch. Each closure type F has one label:
/// its string is made at the first launch and kept.
template <class F>
const std::string& kept_label(const char* label) {
  static const std::string kept(label);
  return kept;
}

/// f(row, i) for i < rows. F takes (const Row&, index_t).
template <class F>
void for_each_row(const Device& device, const char* label, index_t rows, const F& f) {
  if (device.is_planning()) return device.launch_planned();
  if constexpr (on_host) {
    Kokkos::parallel_for(kept_label<F>(label), RangePolicy(device.exec(), 0, rows),
                         [=](const index_t i) { f(HostRow{}, i); });
  } else {
    Kokkos::parallel_for(kept_label<F>(label), team_policy(device, rows), RowOfTeam<F>{f, row_order(device)});
  }
}

/// f(row, i) for i < rows, with the threads that chunks of `columns` elements of T need.
template <class T, class F>
void for_each_row_of(const Device& device, const char* label, index_t rows, index_t columns, const F& f) {
  if constexpr (on_host) {
    for_each_row(device, label, rows, f);
  } else {
    if (device.is_planning()) return device.launch_planned();
    Kokkos::parallel_for(kept_label<F>(label), team_policy(device, rows, team_threads<T>(columns)),
                         RowOfTeam<F>{f, row_order(device)});
  }
}

/// result (1) <- sum of f(row, i) over i < rows; on the host in order (Serial backend). R{} is zero. The result is in
/// memory of the device; no host synchronization.
template <class R, class F>
void sum_of_rows(const Device& device, const char* label, index_t rows, const F& f, const Vector<R>& result) {
  if (device.is_planning()) return device.launch_planned();
  const Kokkos::View<R, MemorySpace, Kokkos::MemoryUnmanaged> into(result.data());
  if constexpr (on_host) {
    Kokkos::parallel_reduce(
        kept_label<F>(label), RangePolicy(device.exec(), 0, rows),
        [=](const index_t i, R& sum) { sum += f(HostRow{}, i); }, into);
  } else {
    const RowOrder order = row_order(device);
    Kokkos::parallel_reduce(
        kept_label<F>(label), team_policy(device, rows),
        KOKKOS_LAMBDA(const TeamRow::Member& team, R& sum) {
          const R part = f(TeamRow{team, order}, team.league_rank());
          Kokkos::single(Kokkos::PerTeam(team), [&]() { sum += part; });
        },
        into);
  }
}

/// f(i) for i < n, where no iteration reads what another one writes.
template <class F>
void for_each_element(const Device& device, const char* label, index_t n, const F& f) {
  if (device.is_planning()) return device.launch_planned();
  if constexpr (on_host) {
    constexpr index_t piece = 4096;  // elements: long enough to vectorise, short enough to balance
    Kokkos::parallel_for(kept_label<F>(label), RangePolicy(device.exec(), 0, (n + piece - 1) / piece),
                         [=](const index_t p) {
                           const F body = f;  // a local copy: its members then live in registers
                           const index_t end = n < (p + 1) * piece ? n : (p + 1) * piece;
                           NANOTRON_INDEPENDENT_ITERATIONS
                           for (index_t i = p * piece; i < end; ++i) body(i);
                         });
  } else {
    Kokkos::parallel_for(kept_label<F>(label), RangePolicy(device.exec(), 0, n), f);
  }
}

/// f(row, first, count) for pieces [first, first + count) that cover [0, n), for loops over chunks of T.
template <class T, class F>
void for_each_piece(const Device& device, const char* label, index_t n, const F& f) {
  // On the host long enough to vectorise, short enough to balance; on a GPU four chunks for each of 256 threads.
  constexpr index_t piece = on_host ? 4096 : 4 * 256 * chunk_width<T>;
  for_each_row_of<T>(
      device, label, (n + piece - 1) / piece, on_host ? piece : 256 * chunk_width<T>,
      KOKKOS_LAMBDA(const Row& row, const index_t i) {
        const index_t first = i * piece;
        f(row, first, n - first < piece ? n - first : piece);
      });
}

/// Integer sum of f(i) for i < n, independent of the order. The result is on the host at return.
template <class I, class F>
I sum_of_elements(const Device& device, const char* label, index_t n, const F& f) {
  static_assert(std::is_integral_v<I>);
  I result = 0;
  if (device.is_planning()) return device.launch_planned(), device.wait_planned(), result;
  Kokkos::parallel_reduce(
      kept_label<F>(label), RangePolicy(device.exec(), 0, n), KOKKOS_LAMBDA(const index_t i, I& sum) { sum += f(i); },
      result);
  return result;
}

}  // namespace nanotron::kernels
