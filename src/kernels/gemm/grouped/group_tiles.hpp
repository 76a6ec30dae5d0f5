#pragma once

// The work of a block of threads in a grouped GEMM: one tile of sums. Two pairs of operand tiles in shared memory take
// turns: one is copied while the other is multiplied. Private to kernels.

#include "kernels/mma/tiles.hpp"
#include "nanotron/kernels/gemm/grouped/grouped_gemm.hpp"

namespace nanotron::kernels::mma {

// 8 warps in 4 rows and 2 columns, each with 32 x 64 sums: six loads from shared memory for 16 products.
inline constexpr int group_threads = 256, group_warp_rows = 4, group_row_tiles = 2;
inline constexpr int group_side = group_warp_rows * group_row_tiles * 16;  // of a tile of sums: 128
inline constexpr int group_columns = group_side * group_warp_rows * warp_size / group_threads;  // of a warp
inline constexpr int group_depth = 64;                                                          // terms at a time
using GroupSums = SumTile<group_columns, group_row_tiles, group_threads>;
using GroupRegisters = PerThread<Registers, group_threads>;

/// Of the block's tile: the first row of row tile r of the thread's warp, and its first column.
NANOTRON_FUNCTION inline int group_row(int thread, int r) {
  return (thread / warp_size % group_warp_rows * group_row_tiles + r) * 16;
}
NANOTRON_FUNCTION inline int group_column(int thread) { return thread / (group_warp_rows * warp_size) * group_columns; }

/// Where the terms of an operand lie in its tile in shared memory.
enum class Terms { in_rows, in_columns };

/// sums += A B of group_depth terms.
template <Terms of_a, Terms of_b, class Format = Bf16Terms, class A, class B>
NANOTRON_FUNCTION void add_product(const A& a, const B& b, GroupSums& sums) {
  constexpr bool a_in_rows = of_a == Terms::in_rows, b_in_rows = of_b == Terms::in_rows;
  sums.template add_terms<group_depth, Format>(
      [&](int r, int k, GroupRegisters& to) {
        const auto row = [=](int thread) { return group_row(thread, r); };
        const auto term = [=](int) { return k; };
        if constexpr (a_in_rows) {
          a.template load<false, true>(row, term, to);
        } else {
          a.template load<true, false>(term, row, to);
        }
      },
      [&](int k, int n, GroupRegisters& to) {
        const auto column = [=](int thread) { return group_column(thread) + n; };
        const auto term = [=](int) { return k; };
        if constexpr (b_in_rows) {
          b.template load<false, false>(column, term, to);
        } else {
          b.template load<true, true>(term, column, to);
        }
      });
}

/// f(row, column, sums of it and the next column) for those of the block's tile in rows x columns (even).
template <class F>
NANOTRON_FUNCTION void for_each_pair(const GroupSums& sums, index_t rows, index_t columns, const F& f) {
  for (int kept = 0; kept < kept_threads<group_threads>(); ++kept) {
    const int thread = thread_of(kept), first_row = group_row(thread, 0) + thread % warp_size / 4;
    const int first_column = group_column(thread) + 2 * (thread % 4);
    NANOTRON_UNROLL
    for (int r = 0; r < 2 * group_row_tiles; ++r) {
      const int row = first_row + 8 * r;
      if (row >= rows) continue;
      NANOTRON_UNROLL
      for (int p = 0; p < GroupSums::parts; ++p) {
        const int column = first_column + 8 * p;
        if (column < columns) f(row, column, sums.part[r / 2][p].of[kept].c + 2 * (r % 2));
      }
    }
  }
}

NANOTRON_FUNCTION inline void store_rounded(const GroupSums& sums, const MatrixRef<bf16>& to, index_t rows,
                                            index_t columns) {
  for_each_pair(sums, rows, columns, [&](int row, int column, const float* pair) {
    const std::uint32_t both = pack(pair[0], pair[1]);
    std::memcpy(static_cast<void*>(&to(row, column)), &both, sizeof both);
  });
}

NANOTRON_FUNCTION constexpr index_t tiles_of(index_t n) { return (n + group_side - 1) / group_side; }

/// Rows of one group: up to group_side of them from `first` on; count = 0: a block without a tile.
struct GroupRows {
  index_t group = 0, first = 0, count = 0;
};

/// Tiles of rows are numbered group by group. There are at most row_tiles(...), whatever begin says.
struct GroupTiles {
  const std::int64_t* begin;
  index_t groups;
  index_t row_tiles, column_tiles;

  static index_t max_row_tiles(index_t rows, index_t groups) { return rows / group_side + groups; }
  index_t blocks() const { return row_tiles * column_tiles; }

  /// Blocks that run together share operands in the caches: 8 tiles of rows, column by column.
  NANOTRON_FUNCTION GroupRows operator()(index_t block, index_t& column) const {
    constexpr index_t together = 8;
    const index_t band = block / (together * column_tiles), in_band = block % (together * column_tiles);
    const index_t left = row_tiles - band * together, height = left < together ? left : together;
    column = in_band / height * group_side;
    return rows_of(band * together + in_band % height);
  }

 private:
  NANOTRON_FUNCTION GroupRows rows_of(index_t tile) const {
    for (index_t g = 0; g < groups; ++g) {
      const index_t first = begin[g], end = begin[g + 1], here = (end - first + group_side - 1) / group_side;
      if (tile < here) {
        const index_t at = first + tile * group_side;
        return {g, at, end - at < group_side ? end - at : group_side};
      }
      tile -= here;
    }
    return {};
  }
};

/// sums <- over the steps: load(step, a, b) starts the copies, multiply(a, b) adds. A, B: SharedTiles.
template <class A, class B, class Load, class Multiply>
NANOTRON_FUNCTION void for_each_step(const Block& block, index_t steps, const Load& load, const Multiply& multiply) {
  const SharedAddress shared(block.shared);
  const auto a_of = [&](index_t step) { return A{shared + static_cast<int>(step % 2) * (A::bytes + B::bytes)}; };
  const auto b_of = [&](index_t step) {
    return B{shared + (static_cast<int>(step % 2) * (A::bytes + B::bytes) + A::bytes)};
  };
  if (steps > 0) load(index_t{0}, a_of(0), b_of(0));
  for (index_t step = 0; step < steps; ++step) {
    wait_for_copies();
    block.barrier();  // these tiles are there; nobody needs those before
    if (step + 1 < steps) load(step + 1, a_of(step + 1), b_of(step + 1));
    multiply(a_of(step), b_of(step));
  }
}

}  // namespace nanotron::kernels::mma
