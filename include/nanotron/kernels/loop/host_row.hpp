#pragma once

// The loops within one row, by one core of the host: sums run over 32 lanes that are then folded in halves, so that the
// order is the same on every machine and in every build, and the compiler vectorises without -ffast-math.
//
// [[gnu::flatten]]: all that a loop calls is inlined into it, as compilers vectorise no loop with a call. Left to
// itself GCC stops to inline where a file has grown by some part: silu(gate) up of src/kernels/mlp took 15 times as
// long.

#include "nanotron/base/independent_iterations.hpp"
#include "nanotron/kernels/loop/chunk.hpp"

namespace nanotron::kernels {

/// The loops within one row, on one core.
struct HostRow {
  /// Two or more vector registers, which hide the latency of the addition.
  static constexpr int lanes = 32;

  /// f(i) for i < n, where no iteration reads what another one writes.
  template <class F>
  [[gnu::flatten]] void for_each(index_t n, F&& f) const {
    NANOTRON_INDEPENDENT_ITERATIONS
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
  /// n sums at once, of f(i) by element.
  template <class M, int n, class F>
  [[gnu::flatten]] Chunk<M, n> sums(index_t count, F&& f) const {
    M lane[n][lanes] = {};
    index_t i = 0;
    for (; i + lanes <= count; i += lanes) {
      NANOTRON_INDEPENDENT_ITERATIONS
      for (int l = 0; l < lanes; ++l) {
        const Chunk<M, n> values = f(i + l);
        for (int k = 0; k < n; ++k) lane[k][l] += values[k];
      }
    }
    for (; i < count; ++i) {
      const Chunk<M, n> values = f(i);
      for (int k = 0; k < n; ++k) lane[k][i % lanes] += values[k];
    }
    return chunk(Width<n>{}, [&](const int k) { return sum<M>(lanes, [&](const index_t l) { return lane[k][l]; }); });
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
  [[gnu::flatten]] static M fold(index_t n, M start, F&& f, Combine combine) {
    M lane[lanes];
    for (int l = 0; l < lanes; ++l) lane[l] = start;
    index_t i = 0;
    for (; i + lanes <= n; i += lanes) {
      NANOTRON_INDEPENDENT_ITERATIONS
      for (int l = 0; l < lanes; ++l) lane[l] = combine(lane[l], f(i + l));
    }
    for (int l = 0; i + l < n; ++l) lane[l] = combine(lane[l], f(i + l));
    for (int width = lanes / 2; width > 0; width /= 2) {
      for (int l = 0; l < width; ++l) lane[l] = combine(lane[l], lane[l + width]);
    }
    return lane[0];
  }
};

}  // namespace nanotron::kernels
