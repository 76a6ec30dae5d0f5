#pragma once

// Sums of a row on a GPU in the order of a host: over the 32 lanes of HostRow, folded in halves.

#include <cstring>

#include "nanotron/kernels/loop/host_row.hpp"
#include "nanotron/tensor/device.hpp"

namespace nanotron::kernels {

/// Order of the sums of a row: by all threads of the team, or over the 32 lanes of HostRow by its first warp.
enum class RowOrder { threads, lanes };

/// With GemmMode::fixed_order rows are summed as on a host.
inline RowOrder row_order(const Device& device) {
  return device.gemm_mode() == GemmMode::fixed_order ? RowOrder::lanes : RowOrder::threads;
}

#if defined(NANOTRON_ON_GPU)
/// The value of the lane whose number differs in the bit `other`.
template <class V>
__device__ V value_of_lane(const V& value, int other) {
  std::uint32_t words[sizeof(V) / sizeof(std::uint32_t)];
  std::memcpy(words, &value, sizeof words);
#if defined(NANOTRON_WITH_HIP)
  for (std::uint32_t& word : words) word = __shfl_xor(word, other);
#else
  for (std::uint32_t& word : words) word = __shfl_xor_sync(0xffffffffu, word, other);
#endif
  V taken;
  std::memcpy(&taken, words, sizeof taken);
  return taken;
}
#endif

/// value + the sum of f(i), i < n, by the first warp of a team whose threads call it: lane i % 32 adds f(i). Every
/// thread gets the sum. Off a GPU a team is one thread. V: a number, or a Chunk.
template <class V, class F>
KOKKOS_FUNCTION V sum_of_lanes([[maybe_unused]] int thread, index_t n, V value, const F& f) {
  constexpr int lanes = HostRow::lanes;
#if defined(NANOTRON_ON_GPU)
  __shared__ V result;
  __syncthreads();  // all have read what was here before
  if (thread < lanes) {
    for (index_t i = thread; i < n; i += lanes) value += f(i);
    for (int other = lanes / 2; other > 0; other /= 2) value += value_of_lane(value, other);
    if (thread == 0) result = value;
  }
  __syncthreads();
  return result;
#else
  V of[lanes];
  for (int l = 0; l < lanes; ++l) {
    of[l] = value;
    for (index_t i = l; i < n; i += lanes) of[l] += f(i);
  }
  for (int width = lanes / 2; width > 0; width /= 2) {
    for (int l = 0; l < width; ++l) of[l] += of[l + width];
  }
  return of[0];
#endif
}

}  // namespace nanotron::kernels
