#include <algorithm>
#include <cmath>

#include "kernels/gemm/gemm_backend.hpp"
#include "kernels/loop/host_tiles.hpp"
#include "nanotron/kernels/loop/loop.hpp"

// GEMM in a fixed order of summation, whatever the shape, the number of threads and the width of vectors. Both operands
// are packed in the master type, k in the order of the sum. Loops as in BLIS (Van Zee and van de Geijn 2015):
//
//   for columns of C, as many as B's panel holds          B packed once, by all workers
//     for 96 rows of C (a worker each)                    A packed
//       for the columns of a tile
//         for pieces of a shard of k                      B's piece stays in the L1 cache
//           for 6 rows                                    a tile of C in registers (host_tiles.hpp)
//
// A tile's sums are stored and loaded between pieces, exactly; so an element is the same chain of fma over a shard's
// terms for any division. Sums of shards are added in the tree of sum_order.hpp.

namespace nanotron::kernels::detail {
namespace {

constexpr index_t block_rows = 16 * tile_rows;
constexpr index_t depth_of_piece = 256;
constexpr index_t planned_columns = 384;  // of B's panel: packing A then takes 3 % of the time
template <class M>
constexpr index_t tile_columns = row_registers* register_width<M>;
// Columns of B's panel are whole tiles on every machine, so that a plan holds for all.
template <class M>
constexpr index_t column_multiple = 256 / static_cast<index_t>(sizeof(M));

// Workspace: B's panel, then for each worker A's panel and the sums of shards.
template <class M>
struct Panels {
  static constexpr index_t level = block_rows * column_multiple<M>;  // at least block_rows * tile_columns
  static constexpr index_t levels = TreeStack::depth * level;
  static index_t of_b(index_t depth, index_t columns) { return depth * columns; }
  static index_t of_worker(index_t depth) { return depth * block_rows + levels; }
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

// panel (rows / tile_rows, k, tile_rows), zeros below the last row.
template <class T, class M>
void pack_a(const GemmProblem& p, const SumOrder& order, const T* a, index_t first, index_t rows, M* panel) {
  const index_t row_stride = p.op_a == Op::none ? p.leading_a : 1, k_stride = p.op_a == Op::none ? 1 : p.leading_a;
  for (index_t i = 0; i < rows; i += tile_rows) {
    M* const tile = panel + i * p.k;
    const index_t count = std::min(tile_rows, rows - i);
    const T* const from = a + (first + i) * row_stride;
    if (count == tile_rows) {
      for_each_term(order, [=](index_t at, index_t k) {
        for (index_t r = 0; r < tile_rows; ++r)
          tile[at * tile_rows + r] = static_cast<M>(from[r * row_stride + k * k_stride]);
      });
      continue;
    }
    for_each_term(order, [=](index_t at, index_t k) {
      for (index_t r = 0; r < tile_rows; ++r)
        tile[at * tile_rows + r] = r < count ? static_cast<M>(from[r * row_stride + k * k_stride]) : M(0);
    });
  }
}

// One tile of columns: panel (k, tile_columns), zeros right of the last column.
template <class T, class M>
void pack_b(const GemmProblem& p, const SumOrder& order, const T* b, index_t first, M* panel) {
  constexpr index_t width = tile_columns<M>;
  const index_t columns = std::min(width, p.n - first);
  if (p.op_b == Op::none) {
    for_each_term(order, [=](index_t at, index_t k) {
      const T* const from = b + k * p.leading_b + first;
      M* const to = panel + at * width;
      if (columns == width) {
        HostRow{}.for_each(width, [=](index_t j) { to[j] = static_cast<M>(from[j]); });
      } else {
        for (index_t j = 0; j < width; ++j) to[j] = j < columns ? static_cast<M>(from[j]) : M(0);
      }
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

// Leaves the sums of `rows` rows and a tile of columns in level 0 of the stack, row-major. Begin::at_c: C is there
// before, and the order has one shard.
template <class C, class M>
void sum_tile(const GemmProblem& p, const SumOrder& order, Begin begin, const M* a, index_t rows, const M* b,
              M* stack) {
  constexpr index_t width = tile_columns<M>, level = Panels<M>::level;
  const index_t size = round_up(rows, tile_rows) * width;
  const auto add = [=](int into, int from) {
    M* const sum = stack + into * level;
    const M* const more = stack + from * level;
    HostRow{}.for_each(size, [=](index_t i) { sum[i] = rounded<C>(sum[i] + more[i]); });
  };
  TreeStack tree;
  index_t at = 0;
  for (int s = 0; s < order.shards_on_rank; ++s) {
    index_t depth = 0;
    for (int block = 0; block < order.block_count; ++block) depth += order.terms(block, s).size();
    M* const place = stack + tree.top() * level;
    if (depth == 0 && begin == Begin::at_zero) std::fill(place, place + size, M(0));
    for (index_t done = 0; done < depth; done += depth_of_piece) {
      const index_t piece = std::min(depth_of_piece, depth - done), first = at + done;
      for (index_t i = 0; i < rows; i += tile_rows) {
        tile_kernel<row_registers, M>(piece, {a + i * p.k + first * tile_rows, 1, tile_rows}, b + first * width, width,
                                      place + i * width, width, done > 0 || begin == Begin::at_c);
      }
    }
    if constexpr (!std::is_same_v<C, M>) HostRow{}.for_each(size, [=](index_t i) { place[i] = rounded<C>(place[i]); });
    tree.push(add);
    at += depth;
  }
  tree.finish(add);
}

template <class C, class M>
void load_c(const GemmProblem& p, const C* c, index_t row, index_t rows, index_t column, M* tile) {
  const index_t columns = std::min(tile_columns<M>, p.n - column);
  for (index_t r = 0; r < rows; ++r) {
    const C* const from = c + (row + r) * p.leading_c + column;
    M* const to = tile + r * tile_columns<M>;
    HostRow{}.for_each(columns, [=](index_t j) { to[j] = static_cast<M>(from[j]); });
  }
}

template <class C, class M>
void store(const GemmProblem& p, Begin begin, const M* tile, index_t row, index_t rows, index_t column, C* c) {
  const M alpha = static_cast<M>(p.alpha), beta = static_cast<M>(p.beta);
  const index_t columns = std::min(tile_columns<M>, p.n - column);
  for (index_t r = 0; r < rows; ++r) {
    C* const to = c + (row + r) * p.leading_c + column;
    const M* const from = tile + r * tile_columns<M>;
    if (p.beta == 0 || begin == Begin::at_c) {
      HostRow{}.for_each(columns, [=](index_t j) { to[j] = static_cast<C>(alpha * from[j]); });
    } else {
      HostRow{}.for_each(
          columns, [=](index_t j) { to[j] = static_cast<C>(std::fma(alpha, from[j], beta * static_cast<M>(to[j]))); });
    }
  }
}

template <class T, class C>
void multiply_from(Begin begin, Device& device, const GemmProblem& p, const SumOrder& given, const T* a, const T* b,
                   C* c) {
  using M = master_t<T>;
  constexpr index_t width = tile_columns<M>;
  const SumOrder order = order_or_whole(given, p.k);
  const index_t blocks = (p.m + block_rows - 1) / block_rows, of_worker = Panels<M>::of_worker(p.k);
  const index_t all = static_cast<index_t>(device.gemm_workspace().extent(0) / sizeof(M)), least = p.k * width;
  const index_t workers = std::clamp<index_t>((all - least) / of_worker, 0, ExecutionSpace().concurrency());
  NANOTRON_REQUIRE(workers > 0, "a GEMM workspace of {} bytes, needs {}", device.gemm_workspace().extent(0),
                   static_cast<std::size_t>(of_worker + least) * sizeof(M));
  const index_t tiles = std::min((all - workers * of_worker) / least, (p.n + width - 1) / width);
  M* const panel_b = reinterpret_cast<M*>(device.gemm_workspace().data());
  M* const of_workers = panel_b + Panels<M>::of_b(p.k, tiles * width);
  for (index_t first_column = 0; first_column < p.n; first_column += tiles * width) {
    const index_t here = std::min(tiles, (p.n - first_column + width - 1) / width);
    const auto pack = [=](const index_t t) {
      pack_b<T, M>(p, order, b, first_column + t * width, panel_b + t * p.k * width);
    };
    Kokkos::parallel_for(kept_label<decltype(pack)>("gemm_in_order_pack"), RangePolicy(device.exec(), 0, here), pack);
    const auto work = [=](const index_t worker) {
      M* const panel_a = of_workers + worker * of_worker;
      M* const stack = panel_a + p.k * block_rows;
      for (index_t block = worker; block < blocks; block += workers) {
        const index_t first = block * block_rows, rows = std::min(block_rows, p.m - first);
        pack_a<T, M>(p, order, a, first, rows, panel_a);
        for (index_t t = 0; t < here; ++t) {
          if (begin == Begin::at_c) load_c(p, c, first, rows, first_column + t * width, stack);
          sum_tile<C, M>(p, order, begin, panel_a, rows, panel_b + t * p.k * width, stack);
          store<C, M>(p, begin, stack, first, rows, first_column + t * width, c);
        }
      }
    };
    Kokkos::parallel_for(kept_label<decltype(work)>("gemm_in_order"), RangePolicy(device.exec(), 0, workers), work);
  }
}

}  // namespace

template <class T, class C>
void multiply_in_order(Device& device, const GemmProblem& p, const SumOrder& order, const T* a, const T* b, C* c) {
  multiply_from<T, C>(Begin::at_zero, device, p, order, a, b, c);
}

template <class T, class C>
void multiply_batch_in_order(Device& device, const GemmProblem& p, const T* const* a, const T* const* b, C* const* c,
                             index_t count) {
  for (index_t i = 0; i < count; ++i) multiply_from<T, C>(begin_of_batch(p), device, p, {}, a[i], b[i], c[i]);
}

template <class T>
std::size_t fixed_order_workspace_bytes(index_t k) {
  using M = master_t<T>;
  const index_t elements =
      Panels<M>::of_b(k, planned_columns) + Panels<M>::of_worker(k) * ExecutionSpace().concurrency();
  return static_cast<std::size_t>(elements) * sizeof(M);
}
#define NANOTRON_INSTANTIATE(T) template std::size_t fixed_order_workspace_bytes<T>(index_t);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

NANOTRON_INSTANTIATE_FIXED_ORDER

}  // namespace nanotron::kernels::detail
