#include "nanotron/kernels/gemm/grouped/grouped_gemm.hpp"

#include "kernels/mma/tiles.hpp"
#include "nanotron/base/error.hpp"

namespace nanotron::kernels::mma {

// The work of a block of threads: one tile of sums. Two pairs of operand tiles
// in shared memory take turns: one is copied while the other is multiplied.

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
template <Terms of_a, Terms of_b, class A, class B>
NANOTRON_FUNCTION void add_product(const A& a, const B& b, GroupSums& sums) {
  constexpr bool a_in_rows = of_a == Terms::in_rows, b_in_rows = of_b == Terms::in_rows;
  sums.add_terms<group_depth>(
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

/// Y_g = X_g W_g^T.
struct GroupedForward {
  static constexpr int threads = group_threads;
  using Tile = SharedTile<group_side, group_depth>;
  static constexpr std::size_t shared_bytes = 4 * Tile::bytes;

  GroupTiles tiles;
  MatrixRef<const bf16> x;
  GroupMatrices<const bf16> w;
  MatrixRef<bf16> y;

  NANOTRON_FUNCTION void operator()(const Block& block) const {
    index_t column = 0;
    const GroupRows rows = tiles(block.index, column);
    if (rows.count == 0) return;
    const bf16* const from = &x(rows.first, 0);
    const bf16* const weight = &w[rows.group](column, 0);
    GroupSums sums;
    sums.clear();
    for_each_step<Tile, Tile>(
        block, (x.columns + group_depth - 1) / group_depth,
        [&](index_t step, const Tile& a, const Tile& b) {
          const index_t k = step * group_depth;
          a.template start_load<threads>(from + k, x.leading, rows.count, x.columns - k);
          b.template start_load<threads>(weight + k, w.columns, w.rows - column, x.columns - k);
        },
        [&](const Tile& a, const Tile& b) { add_product<Terms::in_rows, Terms::in_rows>(a, b, sums); });
    store_rounded(sums, y.row_block(rows.first, rows.count).column_block(column, y.columns), rows.count,
                  y.columns - column);
  }
};

/// dX_g = dY_g W_g.
struct GroupedBackwardInput {
  static constexpr int threads = group_threads;
  using A = SharedTile<group_side, group_depth>;
  using B = SharedTile<group_depth, group_side>;
  static constexpr std::size_t shared_bytes = 2 * (A::bytes + B::bytes);

  GroupTiles tiles;
  MatrixRef<const bf16> dy;
  GroupMatrices<const bf16> w;
  MatrixRef<bf16> dx;

  NANOTRON_FUNCTION void operator()(const Block& block) const {
    index_t column = 0;
    const GroupRows rows = tiles(block.index, column);
    if (rows.count == 0) return;
    const bf16* const from = &dy(rows.first, 0);
    const bf16* const weight = &w[rows.group](0, column);
    GroupSums sums;
    sums.clear();
    for_each_step<A, B>(
        block, (dy.columns + group_depth - 1) / group_depth,
        [&](index_t step, const A& a, const B& b) {
          const index_t k = step * group_depth;
          a.template start_load<threads>(from + k, dy.leading, rows.count, dy.columns - k);
          b.template start_load<threads>(weight + k * w.columns, w.columns, w.rows - k, w.columns - column);
        },
        [&](const A& a, const B& b) { add_product<Terms::in_rows, Terms::in_columns>(a, b, sums); });
    store_rounded(sums, dx.row_block(rows.first, rows.count).column_block(column, dx.columns), rows.count,
                  dx.columns - column);
  }
};

/// dW_g += dY_g^T X_g.
struct GroupedBackwardWeight {
  static constexpr int threads = group_threads;
  using Tile = SharedTile<group_depth, group_side>;
  static constexpr std::size_t shared_bytes = 4 * Tile::bytes;

  const std::int64_t* begin;
  MatrixRef<const bf16> dy, x;
  GroupMatrices<float> dw;

  index_t blocks() const { return dw.groups * tiles_of(dw.rows) * tiles_of(dw.columns); }

  NANOTRON_FUNCTION void operator()(const Block& block) const {
    const index_t across = tiles_of(dw.columns), of_group = tiles_of(dw.rows) * across;
    const index_t g = block.index / of_group;
    const index_t row = block.index % of_group / across * group_side, column = block.index % across * group_side;
    const index_t first = begin[g], count = begin[g + 1] - first;
    if (count == 0) return;
    const bf16* const left = &dy(first, row);
    const bf16* const right = &x(first, column);
    GroupSums sums;
    sums.clear();
    for_each_step<Tile, Tile>(
        block, (count + group_depth - 1) / group_depth,
        [&](index_t step, const Tile& a, const Tile& b) {
          const index_t k = step * group_depth;
          a.template start_load<threads>(left + k * dy.leading, dy.leading, count - k, dw.rows - row);
          b.template start_load<threads>(right + k * x.leading, x.leading, count - k, dw.columns - column);
        },
        [&](const Tile& a, const Tile& b) { add_product<Terms::in_columns, Terms::in_columns>(a, b, sums); });
    const MatrixRef<float> to = dw[g].row_block(row, dw.rows).column_block(column, dw.columns);
    for_each_pair(sums, dw.rows - row, dw.columns - column, [&](int i, int j, const float* pair) {
      float* const at = &to(i, j);
      at[0] += pair[0];
      at[1] += pair[1];
    });
  }
};

}  // namespace nanotron::kernels::mma

namespace nanotron::kernels {
namespace {

bool is_aligned(const void* p) { return reinterpret_cast<std::uintptr_t>(p) % 16 == 0; }

// With as many rows for each group: what a plan can know.
Work work_of(const Matrix<const bf16>& x, index_t out, index_t in, index_t groups, double weight_bytes) {
  const auto rows = static_cast<index_t>(x.extent(0));
  const double sums = 2.0 * static_cast<double>(rows) * static_cast<double>(out) * static_cast<double>(in);
  const double moved = 2.0 * static_cast<double>(rows) * static_cast<double>(out + in);
  return {.read = moved + weight_bytes,
          .written = 0.0,
          .flops = sums,
          .type = ScalarType::bf16,
          .gemm = {rows / groups, out, in, groups}};
}

template <class T>
double bytes_of_all(const GroupMatrices<T>& m) {
  return static_cast<double>(m.groups * m.rows * m.columns) * sizeof(T);
}

template <class A, class B, class W>
void require_shapes(const Matrix<A>& of_out, const Matrix<B>& of_in, const GroupMatrices<W>& w,
                    const Vector<const std::int64_t>& begin) {
  NANOTRON_REQUIRE(of_out.extent(0) == of_in.extent(0) && static_cast<index_t>(of_out.extent(1)) == w.rows &&
                       static_cast<index_t>(of_in.extent(1)) == w.columns &&
                       static_cast<index_t>(begin.extent(0)) == w.groups + 1 && w.rows % 8 == 0 && w.columns % 8 == 0,
                   "a grouped GEMM of ({}, {}) and ({}, {}) with {} matrices of ({}, {}), {} offsets", of_out.extent(0),
                   of_out.extent(1), of_in.extent(0), of_in.extent(1), w.groups, w.rows, w.columns, begin.extent(0));
  NANOTRON_REQUIRE(is_aligned(of_out.data()) && is_aligned(of_in.data()), "operands of a grouped GEMM at {} and {}",
                   static_cast<const void*>(of_out.data()), static_cast<const void*>(of_in.data()));
}

template <class Kernel>
void launch(const Device& device, const char* label, index_t blocks, const Kernel& kernel) {
  if (device.is_planning()) return device.launch_planned();
  mma::launch_blocks(device, label, blocks, kernel);
}

mma::GroupTiles tiles_of(const Vector<const std::int64_t>& begin, index_t rows, index_t groups, index_t columns) {
  return {begin.data(), groups, mma::GroupTiles::max_row_tiles(rows, groups), mma::tiles_of(columns)};
}

}  // namespace

bool can_group(const GroupMatrices<const bf16>& w) {
  return w.rows % 8 == 0 && w.columns % 8 == 0 && w.stride % 8 == 0 && is_aligned(w.first);
}

void grouped_forward(Device& device, Matrix<const bf16> x, const GroupMatrices<const bf16>& w,
                     Vector<const std::int64_t> begin, Matrix<bf16> y) {
  const KernelRegion kernel(device, "gemm_grouped", work_of(x, w.rows, w.columns, w.groups, bytes_of_all(w)));
  require_shapes(y, x, w, begin);
  const mma::GroupTiles tiles = tiles_of(begin, static_cast<index_t>(x.extent(0)), w.groups, w.rows);
  launch(device, "gemm_grouped_forward", tiles.blocks(), mma::GroupedForward{tiles, x, w, y});
}

void grouped_backward_input(Device& device, Matrix<const bf16> dy, const GroupMatrices<const bf16>& w,
                            Vector<const std::int64_t> begin, Matrix<bf16> dx) {
  const KernelRegion kernel(device, "gemm_grouped", work_of(dy, w.rows, w.columns, w.groups, bytes_of_all(w)));
  require_shapes(dy, dx, w, begin);
  const mma::GroupTiles tiles = tiles_of(begin, static_cast<index_t>(dy.extent(0)), w.groups, w.columns);
  launch(device, "gemm_grouped_backward_input", tiles.blocks(), mma::GroupedBackwardInput{tiles, dy, w, dx});
}

void grouped_backward_weight(Device& device, Matrix<const bf16> dy, Matrix<const bf16> x,
                             Vector<const std::int64_t> begin, const GroupMatrices<float>& dw) {
  const KernelRegion kernel(device, "gemm_grouped", work_of(x, dw.rows, dw.columns, dw.groups, 2.0 * bytes_of_all(dw)));
  require_shapes(dy, x, dw, begin);
  const mma::GroupedBackwardWeight grouped{begin.data(), dy, x, dw};
  launch(device, "gemm_grouped_backward_weight", grouped.blocks(), grouped);
}

}  // namespace nanotron::kernels
