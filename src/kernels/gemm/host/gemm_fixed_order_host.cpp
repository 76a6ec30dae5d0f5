#include <algorithm>
#include <cmath>

#include "kernels/gemm/gemm_backend.hpp"
#include "kernels/gemm/host/ordered_sums.hpp"
#include "nanotron/kernels/loop/loop.hpp"

// GEMM in a fixed order of summation, whatever the shape, the number of threads and the width of vectors. Both operands
// are packed, k in the order of the sum. Loops as in BLIS (Van Zee and van de Geijn 2015):
//
//   for columns of C, as many as B's panel holds          B packed once, by all workers
//     for 96 rows of C (a worker each)                    A packed
//       for the columns of a tile
//         for 32 or 48 of the rows                        sums of shards stay in the L1 cache
//           for the shards of k                           sums of a shard (ordered_sums.hpp)
//             for pieces of a shard                       B's piece stays in the L1 cache
//               for the rows of a tile                    a tile of C in registers (host_tiles.hpp)
//
// A tile's sums are stored and loaded between pieces, exactly; so an element is the same for any division: a chain of
// fma over a shard's terms, or, of bf16, the order of pair_order.hpp. Attention continues the sums of earlier blocks
// (Begin::at_c). Sums of shards are added in the tree of sum_order.hpp.

namespace nanotron::kernels::detail {
namespace {

constexpr index_t planned_columns = 384;  // of B's panel: packing A then takes 3 % of the time
// Columns of B's panel are whole tiles on every machine, so that a plan holds for all.
template <class M>
constexpr index_t column_multiple = 256 / static_cast<index_t>(sizeof(M));

// Workspace: B's panel, then for each worker A's panel and the sums of shards.
template <class M>
struct Panels {
  static constexpr index_t level = block_rows / 2 * column_multiple<M>;  // at least rows_at_once * tile_columns
  static constexpr index_t levels = TreeStack::depth * level;
  static index_t of_b(index_t depth, index_t columns) { return depth * columns; }
  static index_t of_worker(index_t depth) { return depth * block_rows + levels; }
};

template <class C, class M>
M rounded(M x) {
  return static_cast<M>(static_cast<C>(x));
}

// Leaves the sums of `size` elements in level 0 of the stack, to be rounded to C. sum_shard(s, at, sums) as Sums::sum.
template <class C, class M, class F>
void sum_shards(const SumOrder& order, index_t size, M* stack, const F& sum_shard) {
  constexpr index_t level = Panels<M>::level;
  // Both are rounded to C before they are added: a sum of shards is so a second time, which changes nothing.
  const auto add = [=](int into, int from) {
    M* const sum = stack + into * level;
    const M* const more = stack + from * level;
    HostRow{}.for_each(size, [=](index_t i) { sum[i] = rounded<C>(sum[i]) + rounded<C>(more[i]); });
  };
  TreeStack tree;
  index_t at = 0;
  for (int s = 0; s < order.shards_on_rank; ++s) {
    at += sum_shard(s, at, stack + tree.top() * level);
    tree.push(add);
  }
  tree.finish(add);
}

// Zeros below, up to whole tiles.
template <class C, class M>
void load_c(const GemmProblem& p, const C* c, index_t row, index_t rows, index_t column, M* tile) {
  const index_t columns = std::min(tile_columns<M>, p.n - column);
  for (index_t r = 0; r < rows; ++r) {
    const C* const from = c + (row + r) * p.leading_c + column;
    M* const to = tile + r * tile_columns<M>;
    HostRow{}.for_each(columns, [=](index_t j) { to[j] = static_cast<M>(from[j]); });
  }
  std::fill(tile + rows * tile_columns<M>, tile + round_up(rows, tile_rows) * tile_columns<M>, M(0));
}

// alpha times the tile, rounded to C, to C.
template <class C, class M>
void store(const GemmProblem& p, Begin begin, const M* tile, index_t row, index_t rows, index_t column, C* c) {
  const M alpha = static_cast<M>(p.alpha), beta = static_cast<M>(p.beta);
  const index_t columns = std::min(tile_columns<M>, p.n - column);
  for (index_t r = 0; r < rows; ++r) {
    C* const to = c + (row + r) * p.leading_c + column;
    const M* const from = tile + r * tile_columns<M>;
    if (p.beta == 0 || begin == Begin::at_c) {
      HostRow{}.for_each(columns, [=](index_t j) { to[j] = static_cast<C>(alpha * rounded<C>(from[j])); });
    } else {
      HostRow{}.for_each(columns, [=](index_t j) {
        to[j] = static_cast<C>(std::fma(alpha, rounded<C>(from[j]), beta * static_cast<M>(to[j])));
      });
    }
  }
}

// sums: packs and adds.
template <class T, class C, class Sums>
void multiply_by(const Sums& sums, Begin begin, Device& device, const GemmProblem& p, const SumOrder& order, const T* a,
                 const T* b, C* c) {
  using M = master_t<T>;
  using Element = typename Sums::Element;
  constexpr index_t width = tile_columns<M>;
  const index_t depth = sums.depth();
  const index_t blocks = (p.m + block_rows - 1) / block_rows;
  const auto in_workspace = [](index_t elements) {
    return elements * static_cast<index_t>(sizeof(Element)) / static_cast<index_t>(sizeof(M));
  };
  const index_t of_a = in_workspace(depth * block_rows), of_worker = of_a + Panels<M>::levels;
  const index_t all = static_cast<index_t>(device.gemm_workspace().extent(0) / sizeof(M)),
                least = in_workspace(depth * width);
  const index_t workers = std::clamp<index_t>((all - least) / of_worker, 0, ExecutionSpace().concurrency());
  NANOTRON_REQUIRE(workers > 0, "a GEMM workspace of {} bytes, needs {}", device.gemm_workspace().extent(0),
                   static_cast<std::size_t>(of_worker + least) * sizeof(M));
  const index_t tiles = std::min((all - workers * of_worker) / least, (p.n + width - 1) / width);
  M* const workspace = reinterpret_cast<M*>(device.gemm_workspace().data());
  Element* const panel_b = reinterpret_cast<Element*>(workspace);
  M* const of_workers = workspace + tiles * least;
  for (index_t first_column = 0; first_column < p.n; first_column += tiles * width) {
    const index_t here = std::min(tiles, (p.n - first_column + width - 1) / width);
    const auto pack = [=](const index_t t) { sums.pack_b(b, first_column + t * width, panel_b + t * depth * width); };
    Kokkos::parallel_for(kept_label<decltype(pack)>("gemm_in_order_pack"), RangePolicy(device.exec(), 0, here), pack);
    const auto work = [=](const index_t worker) {
      [[maybe_unused]] const typename Sums::Scope scope;
      M* const own = of_workers + worker * of_worker;
      M* const stack = own + of_a;
      Element* const panel_a = reinterpret_cast<Element*>(own);
      for (index_t block = worker; block < blocks; block += workers) {
        const index_t first = block * block_rows, rows = std::min(block_rows, p.m - first);
        sums.pack_a(a, first, rows, panel_a);
        for (index_t t = 0; t < here; ++t) {
          const index_t column = first_column + t * width, columns = std::min(width, p.n - column);
          const Element* const of_b = panel_b + t * depth * width;
          for (index_t row = 0; row < rows; row += Sums::rows_at_once) {
            const Range of_panel{row, std::min(row + Sums::rows_at_once, rows)};
            const index_t count = of_panel.size();
            if (begin == Begin::at_c) load_c(p, c, first + row, count, column, stack);
            sum_shards<C, M>(order, count * width, stack, [&](int shard, index_t at, M* place) {
              return sums.sum(shard, at, begin, of_panel, columns, panel_a, of_b, place);
            });
            store<C, M>(p, begin, stack, first + row, count, column, c);
          }
        }
      }
    };
    Kokkos::parallel_for(kept_label<decltype(work)>("gemm_in_order"), RangePolicy(device.exec(), 0, workers), work);
  }
}

template <class T, class C>
void multiply_chains(Begin begin, Device& device, const GemmProblem& p, const SumOrder& given, const T* a, const T* b,
                     C* c) {
  const SumOrder order = order_or_whole(given, p.k);
  multiply_by<T, C>(ChainSums<T, master_t<T>>{{p, order}}, begin, device, p, order, a, b, c);
}

template <class C>
void multiply_pairs(Begin begin, Device& device, const GemmProblem& p, const SumOrder& given, const bf16* a,
                    const bf16* b, C* c) {
  const SumOrder order = order_or_whole(given, p.k);
#ifdef NANOTRON_HAS_AMX
  const TileSums tiles(p, order);
  if (tiles.fits()) return multiply_by<bf16, C>(tiles, begin, device, p, order, a, b, c);
#endif
  multiply_by<bf16, C>(PairSums{{p, order}}, begin, device, p, order, a, b, c);
}

template <class T, class C>
void multiply_from(Begin begin, Device& device, const GemmProblem& p, const SumOrder& order, const T* a, const T* b,
                   C* c) {
  if constexpr (std::is_same_v<T, bf16>)
    multiply_pairs<C>(begin, device, p, order, a, b, c);
  else
    multiply_chains<T, C>(begin, device, p, order, a, b, c);
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
