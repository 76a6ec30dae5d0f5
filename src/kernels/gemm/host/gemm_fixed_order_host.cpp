#include <algorithm>
#include <cmath>

#include "kernels/gemm/gemm_backend.hpp"
#include "kernels/loop/host_tiles.hpp"
#include "nanotron/kernels/loop/loop.hpp"

// GEMM in a fixed order of summation, whatever the shape and the number of threads. Both operands are packed into
// panels of the master type, k in the order of the sum; the tiles of host_tiles.hpp run over k from first to last.

namespace nanotron::kernels::detail {
namespace {

constexpr index_t block_rows = 16 * tile_rows;
template <class M>
constexpr index_t block_columns = 4 * vector_width<M>;

// Workspace of one worker.
template <class M>
struct Panels {
  M* a;      // (tiles, depth, tile_rows)
  M* b;      // (depth, block_columns)
  M* stack;  // TreeStack::depth tiles (tile_rows, block_columns)
  static constexpr index_t tile = tile_rows * block_columns<M>;
  static index_t elements(index_t depth) {
    return round_up(depth * (block_rows + block_columns<M>)+TreeStack::depth * tile, vector_width<M>);
  }
  Panels(M* memory, index_t depth) : a(memory), b(a + depth * block_rows), stack(b + depth * block_columns<M>) {}
};

// f(row of the packed panel, k), in the order of the sum.
template <class F>
void for_each_term(const SumOrder& order, const F& f) {
  index_t at = 0;
  for (int s = 0; s < order.shards_on_rank; ++s) {
    for (int b = 0; b < order.block_count; ++b) {
      const Range terms = order.terms(b, s);
      for (index_t k = terms.begin; k < terms.end; ++k) f(at++, k);
    }
  }
}

template <class T, class M>
void pack_a(const GemmProblem& p, const SumOrder& order, const T* a, index_t first, index_t rows, M* panel) {
  const index_t row_stride = p.op_a == Op::none ? p.leading_a : 1, k_stride = p.op_a == Op::none ? 1 : p.leading_a;
  for (index_t i = 0; i < rows; i += tile_rows) {
    M* const tile = panel + i * p.k;
    const index_t count = std::min(tile_rows, rows - i);
    const T* const from = a + (first + i) * row_stride;
    for_each_term(order, [=](index_t at, index_t k) {
      for (index_t r = 0; r < count; ++r)
        tile[at * tile_rows + r] = static_cast<M>(from[r * row_stride + k * k_stride]);
      for (index_t r = count; r < tile_rows; ++r) tile[at * tile_rows + r] = 0;
    });
  }
}

template <class T, class M>
void pack_b(const GemmProblem& p, const SumOrder& order, const T* b, index_t first, index_t columns, M* panel) {
  constexpr index_t width = block_columns<M>;
  if (p.op_b == Op::none) {
    for_each_term(order, [=](index_t at, index_t k) {
      const T* const from = b + k * p.leading_b + first;
      HostRow{}.for_each(columns, [=](index_t j) { panel[at * width + j] = static_cast<M>(from[j]); });
      for (index_t j = columns; j < width; ++j) panel[at * width + j] = 0;
    });
    return;
  }
  for (index_t j = 0; j < width; ++j) {
    const T* const from = b + (first + j) * p.leading_b;
    for_each_term(order,
                  [=](index_t at, index_t k) { panel[at * width + j] = j < columns ? static_cast<M>(from[k]) : M(0); });
  }
}

template <class C, class M>
M rounded(M x) {
  return static_cast<M>(static_cast<C>(x));
}

// Leaves the sum of one tile in level 0 of the stack.
template <class C, class M>
void sum_tile(const SumOrder& order, const M* a, const M* b, M* stack) {
  constexpr index_t width = block_columns<M>, tile = Panels<M>::tile;
  const auto add = [=](int into, int from) {
    M* const sum = stack + into * tile;
    const M* const more = stack + from * tile;
    HostRow{}.for_each(tile, [=](index_t i) { sum[i] = rounded<C>(sum[i] + more[i]); });
  };
  TreeStack tree;
  index_t at = 0;
  for (int s = 0; s < order.shards_on_rank; ++s) {
    index_t depth = 0;
    for (int block = 0; block < order.block_count; ++block) {
      const Range terms = order.terms(block, s);
      depth += terms.end - terms.begin;
    }
    M* const place = stack + tree.top() * tile;
    tile_gemm<M>(tile_rows, width, depth, {a + at * tile_rows, 1, tile_rows}, b + at * width, width, place, width,
                 false);
    if constexpr (!std::is_same_v<C, M>) HostRow{}.for_each(tile, [=](index_t i) { place[i] = rounded<C>(place[i]); });
    tree.push(add);
    at += depth;
  }
  tree.finish(add);
}

template <class C, class M>
void store(const GemmProblem& p, const M* tile, index_t row, index_t rows, index_t column, index_t columns, C* c) {
  const M alpha = static_cast<M>(p.alpha), beta = static_cast<M>(p.beta);
  for (index_t r = 0; r < rows; ++r) {
    C* const to = c + (row + r) * p.leading_c + column;
    const M* const from = tile + r * block_columns<M>;
    if (p.beta == 0) {
      HostRow{}.for_each(columns, [=](index_t j) { to[j] = static_cast<C>(alpha * from[j]); });
    } else {
      HostRow{}.for_each(
          columns, [=](index_t j) { to[j] = static_cast<C>(std::fma(alpha, from[j], beta * static_cast<M>(to[j]))); });
    }
  }
}

template <class T, class C>
void multiply_on_host(const GemmProblem& p, const SumOrder& order, const T* a, const T* b, C* c, index_t first,
                      index_t rows, master_t<T>* memory) {
  using M = master_t<T>;
  const Panels<M> w(memory, p.k);
  pack_a<T, M>(p, order, a, first, rows, w.a);
  for (index_t j = 0; j < p.n; j += block_columns<M>) {
    const index_t columns = std::min(block_columns<M>, p.n - j);
    pack_b<T, M>(p, order, b, j, columns, w.b);
    for (index_t i = 0; i < rows; i += tile_rows) {
      sum_tile<C, M>(order, w.a + i * p.k, w.b, w.stack);
      store<C, M>(p, w.stack, first + i, std::min(tile_rows, rows - i), j, columns, c);
    }
  }
}

}  // namespace

template <class T, class C>
void multiply_in_order(Device& device, const GemmProblem& p, const SumOrder& given, const T* a, const T* b, C* c) {
  using M = master_t<T>;
  const SumOrder order = order_or_whole(given, p.k);
  const index_t slice = Panels<M>::elements(p.k), blocks = (p.m + block_rows - 1) / block_rows;
  const index_t room = static_cast<index_t>(device.gemm_workspace().extent(0) / sizeof(M)) / slice;
  NANOTRON_REQUIRE(room > 0, "a GEMM workspace of {} bytes, needs {}", device.gemm_workspace().extent(0),
                   static_cast<std::size_t>(slice) * sizeof(M));
  const index_t workers = std::min<index_t>(room, ExecutionSpace().concurrency());
  M* const memory = reinterpret_cast<M*>(device.gemm_workspace().data());
  const auto work = [=](const index_t worker) {
    for (index_t block = worker; block < blocks; block += workers) {
      const index_t first = block * block_rows;
      multiply_on_host<T, C>(p, order, a, b, c, first, std::min(block_rows, p.m - first), memory + worker * slice);
    }
  };
  Kokkos::parallel_for(kept_label<decltype(work)>("gemm_in_order"), RangePolicy(device.exec(), 0, workers), work);
}

template <class T, class C>
void multiply_batch_in_order(Device& device, const GemmProblem& p, const T* const* a, const T* const* b, C* const* c,
                             index_t count) {
  for (index_t i = 0; i < count; ++i) multiply_in_order<T, C>(device, p, {}, a[i], b[i], c[i]);
}

template <class T>
std::size_t fixed_order_workspace_bytes(index_t k) {
  using M = master_t<T>;
  return static_cast<std::size_t>(Panels<M>::elements(k) * ExecutionSpace().concurrency()) * sizeof(M);
}
#define NANOTRON_INSTANTIATE(T) template std::size_t fixed_order_workspace_bytes<T>(index_t);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

NANOTRON_INSTANTIATE_FIXED_ORDER

}  // namespace nanotron::kernels::detail
