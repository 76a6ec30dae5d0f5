#include "nanotron/kernels/gemm/grouped/grouped_gemm.hpp"

#include "kernels/gemm/grouped/group_tiles.hpp"
#include "nanotron/base/error.hpp"

namespace nanotron::kernels::mma {

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
