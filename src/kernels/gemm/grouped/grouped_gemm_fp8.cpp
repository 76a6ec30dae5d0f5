#include "nanotron/kernels/gemm/grouped/grouped_gemm_fp8.hpp"

#include "kernels/gemm/grouped/group_tiles.hpp"
#include "nanotron/base/error.hpp"

namespace nanotron::kernels::mma {

/// What the registers of operands hold: codes, of type A on the left and e4m3 on the right.
template <class A>
struct Fp8Terms {};

/// m16n8k32 in FP8 (of Ada and later): the registers of bf16 operands, each with four codes instead of two values, so
/// that a row of 32 codes is loaded as one of 16 values.
template <int first_b, int threads, class Code>
NANOTRON_FUNCTION void multiply(Fp8Terms<Code>, const PerThread<Registers, threads>& a,
                                const PerThread<Registers, threads>& b, PerThread<Sums, threads>& c) {
#if defined(__CUDA_ARCH__)
#if __CUDA_ARCH__ >= 890
  const std::uint32_t* const left = a.of[0].r;
  float* const sum = c.of[0].c;
  if constexpr (std::is_same_v<Code, e4m3>) {
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(b.of[0].r[first_b]), "r"(b.of[0].r[first_b + 1]));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.f32.e5m2.e4m3.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(b.of[0].r[first_b]), "r"(b.of[0].r[first_b + 1]));
  }
#else
  __trap();  // a GPU before Ada
#endif
#else
  const auto code = [](std::uint32_t four, int which) { return static_cast<std::uint8_t>(four >> (8 * which)); };
  for (int warp = 0; warp < threads; warp += warp_size) {
    float left[16][32], right[32][8];
    for (int lane = 0; lane < warp_size; ++lane) {
      const int g = lane / 4, t = lane % 4;
      for (int j = 0; j < 4; ++j) {
        for (int i = 0; i < 4; ++i)
          left[g + 8 * (i % 2)][4 * t + 16 * (i / 2) + j] = Code::from_bits(code(a.of[warp + lane].r[i], j));
        for (int i = 0; i < 2; ++i)
          right[4 * t + 16 * i + j][g] = e4m3::from_bits(code(b.of[warp + lane].r[first_b + i], j));
      }
    }
    for (int lane = 0; lane < warp_size; ++lane) {
      for (int i = 0; i < 4; ++i) {
        const int row = lane / 4 + 8 * (i / 2), column = 2 * (lane % 4) + i % 2;
        float& sum = c.of[warp + lane].c[i];
        for (int k = 0; k < 32; ++k) sum += left[row][k] * right[k][column];
      }
    }
  }
#endif
}

// A tile in shared memory holds 128 rows of 128 codes: as bf16, half as many values.
using CodeTile = SharedTile<group_side, group_depth>;
static_assert(group_side == fp8_block && 2 * group_depth == fp8_block);

/// Codes (rows, leading) with their sums in rows, as bf16: two codes in a value.
struct Codes {
  const bf16* first;
  index_t rows, width;  // width: in values of bf16, two codes each

  NANOTRON_FUNCTION const bf16* at(index_t row, index_t block) const {
    return first + row * width + block * group_depth;
  }
};
template <class E>
Codes codes_of(const Matrix<E>& m) {
  return {reinterpret_cast<const bf16*>(m.data()), static_cast<index_t>(m.extent(0)),
          static_cast<index_t>(m.extent(1)) / 2};
}

/// Scales of a block's tile: of its row i or column i, in block b of the sum.
struct TileScales {
  const float* first;
  Fp8ScaleLayout layout;
  index_t row0;

  NANOTRON_FUNCTION float operator()(index_t i, index_t b) const { return first[layout(row0 + i, b)]; }
};

/// sums += part, each element times its scales in block b; part <- 0. Rows and columns beyond the ends have none.
template <bool has_parts>
NANOTRON_FUNCTION void promote(GroupSums& part, GroupSums& sums, const TileScales& of_rows, index_t rows,
                               const TileScales& of_columns, index_t columns, index_t b) {
  for (int kept = 0; kept < kept_threads<group_threads>(); ++kept) {
    const int thread = thread_of(kept), first_row = group_row(thread, 0) + thread % warp_size / 4;
    const int first_column = group_column(thread) + 2 * (thread % 4);
    float of_row[2 * group_row_tiles];
    NANOTRON_UNROLL
    for (int r = 0; r < 2 * group_row_tiles; ++r) {
      const int row = first_row + 8 * r;
      of_row[r] = has_parts && row < rows ? of_rows(row, b) : 1.0f;
    }
    NANOTRON_UNROLL
    for (int p = 0; p < GroupSums::parts; ++p) {
      float of_column[2];
      NANOTRON_UNROLL
      for (int i = 0; i < 2; ++i) {
        const int column = first_column + 8 * p + i;
        of_column[i] = has_parts && column < columns ? of_columns(column, b) : 1.0f;
      }
      NANOTRON_UNROLL
      for (int r = 0; r < 2 * group_row_tiles; ++r) {
        NANOTRON_UNROLL
        for (int i = 0; i < 2; ++i) {
          float& of_part = part.part[r / 2][p].of[kept].c[2 * (r % 2) + i];
          sums.part[r / 2][p].of[kept].c[2 * (r % 2) + i] += of_part * (of_row[r] * of_column[i]);
          of_part = 0.0f;
        }
      }
    }
  }
}

template <class A>
NANOTRON_FUNCTION void add_codes(const CodeTile& a, const CodeTile& b, GroupSums& part) {
  add_product<Terms::in_rows, Terms::in_rows, Fp8Terms<A>>(a, b, part);
}

/// C_g = A_g W_g^T.
template <class A, bool has_parts>
struct GroupedRowsFp8 {
  static constexpr int threads = group_threads;
  static constexpr std::size_t shared_bytes = 4 * CodeTile::bytes;

  GroupTiles tiles;
  Codes a, w;  // w: of all groups
  const float *a_scales, *w_scales;
  Fp8ScaleLayout a_layout, w_layout;  // w: of one group
  MatrixRef<bf16> c;

  NANOTRON_FUNCTION void operator()(const Block& block) const {
    index_t column = 0;
    const GroupRows rows = tiles(block.index, column);
    if (rows.count == 0) return;
    const Codes of_a = a, of_w = w;
    const index_t out = c.columns, first_of_w = rows.group * out + column;
    GroupSums part, sums;
    part.clear();
    sums.clear();
    const TileScales of_rows{a_scales, a_layout, rows.first};
    const TileScales of_columns{w_scales + rows.group * w_layout.count, w_layout, column};
    index_t b = 0;
    for_each_step<CodeTile, CodeTile>(
        block, (a.width + group_depth - 1) / group_depth,
        [&](index_t step, const CodeTile& left, const CodeTile& right) {
          const index_t there = of_a.width - step * group_depth;
          left.template start_load<threads>(of_a.at(rows.first, step), of_a.width, rows.count, there);
          right.template start_load<threads>(of_w.at(first_of_w, step), of_w.width, out - column, there);
        },
        [&](const CodeTile& left, const CodeTile& right) {
          add_codes<A>(left, right, part);
          promote<has_parts>(part, sums, of_rows, rows.count, of_columns, out - column, b++);
        });
    if constexpr (!has_parts) scale(sums, a_scales[rows.group] * w_scales[rows.group]);
    store_rounded(sums, c.row_block(rows.first, rows.count).column_block(column, out), rows.count, out - column);
  }

 private:
  NANOTRON_FUNCTION static void scale(GroupSums& sums, float factor) {
    sums.for_each([=](int, int, int, float& x) { x *= factor; });
  }
};

/// dW_g += dY_g^T X_g.
template <class A, bool has_parts>
struct GroupedBackwardWeightFp8 {
  static constexpr int threads = group_threads;
  static constexpr std::size_t shared_bytes = 4 * CodeTile::bytes;

  const std::int64_t* begin;
  Codes dy, x;
  const float *dy_scales, *x_scales;
  Fp8ScaleLayout dy_layout, x_layout;
  GroupMatrices<float> dw;

  index_t blocks() const { return dw.groups * tiles_of(dw.rows) * tiles_of(dw.columns); }

  NANOTRON_FUNCTION void operator()(const Block& block) const {
    const index_t across = tiles_of(dw.columns), of_group = tiles_of(dw.rows) * across;
    const index_t g = block.index / of_group;
    const index_t row = block.index % of_group / across * group_side, column = block.index % across * group_side;
    index_t first_tile = 0;
    for (index_t before = 0; before < g; ++before) first_tile += fp8_blocks(begin[before + 1] - begin[before]);
    const index_t steps = fp8_blocks(begin[g + 1] - begin[g]);
    if (steps == 0) return;
    const Codes left_codes = dy, right_codes = x;
    const index_t rows = dw.rows - row, columns = dw.columns - column;
    GroupSums part, sums;
    part.clear();
    sums.clear();
    const TileScales of_rows{dy_scales, dy_layout, row}, of_columns{x_scales, x_layout, column};
    index_t b = first_tile;
    for_each_step<CodeTile, CodeTile>(
        block, steps,
        [&](index_t step, const CodeTile& left, const CodeTile& right) {
          left.template start_load<threads>(left_codes.at(row, first_tile + step), left_codes.width, rows, group_depth);
          right.template start_load<threads>(right_codes.at(column, first_tile + step), right_codes.width, columns,
                                             group_depth);
        },
        [&](const CodeTile& left, const CodeTile& right) {
          add_codes<A>(left, right, part);
          promote<has_parts>(part, sums, of_rows, rows, of_columns, columns, b++);
        });
    const float factor = has_parts ? 1.0f : dy_scales[g] * x_scales[g];
    const MatrixRef<float> to = dw[g].row_block(row, dw.rows).column_block(column, dw.columns);
    for_each_pair(sums, rows, columns, [&](int i, int j, const float* pair) {
      float* const at = &to(i, j);
      at[0] += pair[0] * factor;
      at[1] += pair[1] * factor;
    });
  }
};

}  // namespace nanotron::kernels::mma

namespace nanotron::kernels {
namespace {

// With as many rows for each group: what a plan can know.
Work work_of(index_t rows, index_t out, index_t in, index_t groups, double read, double written) {
  return {.read = read,
          .written = written,
          .flops = 2.0 * static_cast<double>(rows) * static_cast<double>(out) * static_cast<double>(in),
          .type = ScalarType::fp8,
          .gemm = {rows / groups, out, in, groups}};
}

template <class Kernel>
void launch(const Device& device, const char* label, index_t blocks, const Kernel& kernel) {
  if (device.is_planning()) return device.launch_planned();
  mma::launch_blocks(device, label, blocks, kernel);
}

template <class A>
void require_groups(const Fp8Operand<A>& a, index_t groups, const Vector<const std::int64_t>& begin, Fp8Scaling other,
                    bool may_have_parts) {
  const bool has_parts = a.scaling == Fp8Scaling::tiles;
  NANOTRON_REQUIRE(static_cast<index_t>(begin.extent(0)) == groups + 1 && has_parts == (other != Fp8Scaling::tensor) &&
                       (may_have_parts || !has_parts) && a.scaling != Fp8Scaling::blocks,
                   "a grouped FP8 GEMM of {} matrices and {} offsets", groups, begin.extent(0));
}

}  // namespace

template <class A>
void grouped_rows_fp8(Device& device, const Fp8Operand<A>& a, const Fp8GroupWeights& w,
                      Vector<const std::int64_t> begin, Matrix<bf16> c) {
  const auto rows = static_cast<index_t>(c.extent(0)), k = static_cast<index_t>(a.codes.extent(1));
  const index_t out = w.rows();
  const KernelRegion kernel(
      device, "gemm_grouped_fp8",
      work_of(rows, out, k, w.groups, bytes_of(a.codes) + bytes_of(w.codes), bytes_of(MatrixRef<bf16>(c))));
  require_groups(a, w.groups, begin, w.scaling, std::is_same_v<A, e4m3>);
  NANOTRON_REQUIRE(static_cast<index_t>(a.codes.extent(0)) == rows && static_cast<index_t>(w.codes.extent(1)) == k &&
                       static_cast<index_t>(c.extent(1)) == out && k % fp8_padding == 0 && out % 2 == 0,
                   "a grouped FP8 GEMM: A is {} x {}, W {} matrices of {} x {}, C is {} x {}", a.codes.extent(0), k,
                   w.groups, out, w.codes.extent(1), c.extent(0), c.extent(1));
  const mma::GroupTiles tiles{begin.data(), w.groups, mma::GroupTiles::max_row_tiles(rows, w.groups),
                              mma::tiles_of(out)};
  const auto run = [&](const auto& grouped) { launch(device, "gemm_grouped_rows_fp8", tiles.blocks(), grouped); };
  const Fp8ScaleLayout of_a(a.scaling, rows, k), of_w(w.scaling, out, k);
  const mma::Codes left = mma::codes_of(a.codes), right = mma::codes_of(w.codes);
  if constexpr (std::is_same_v<A, e4m3>) {
    if (a.scaling == Fp8Scaling::tiles)
      return run(mma::GroupedRowsFp8<A, true>{tiles, left, right, a.scale, w.scales, of_a, of_w, c});
  }
  run(mma::GroupedRowsFp8<A, false>{tiles, left, right, a.scale, w.scales, of_a, of_w, c});
}

template <class A>
void grouped_backward_weight_fp8(Device& device, const Fp8Operand<A>& dy, const Fp8Operand<e4m3>& x, index_t rows,
                                 Vector<const std::int64_t> begin, const GroupMatrices<float>& dw) {
  const double of_dw = static_cast<double>(dw.groups * dw.rows * dw.columns) * sizeof(float);
  const KernelRegion kernel(
      device, "gemm_grouped_fp8",
      work_of(rows, dw.rows, dw.columns, dw.groups, bytes_of(dy.codes) + bytes_of(x.codes) + of_dw, of_dw));
  constexpr bool has_parts = std::is_same_v<A, e4m3>;
  require_groups(dy, dw.groups, begin, x.scaling, has_parts);
  NANOTRON_REQUIRE(has_parts == (dy.scaling == Fp8Scaling::tiles), "gradients of one scale for each group are e5m2");
  const index_t padded = fp8_group_tiles(rows, dw.groups) * fp8_block;
  NANOTRON_REQUIRE(
      static_cast<index_t>(dy.codes.extent(0)) == dw.rows && static_cast<index_t>(x.codes.extent(0)) == dw.columns &&
          static_cast<index_t>(dy.codes.extent(1)) == padded && static_cast<index_t>(x.codes.extent(1)) == padded &&
          dw.columns % 2 == 0,
      "a grouped FP8 GEMM of {} rows: dY is {} x {}, X is {} x {}, dW {} matrices of {} x {}", rows, dy.codes.extent(0),
      dy.codes.extent(1), x.codes.extent(0), x.codes.extent(1), dw.groups, dw.rows, dw.columns);
  const Fp8ScaleLayout of_dy(dy.scaling, dw.rows, padded), of_x(x.scaling, dw.columns, padded);
  const mma::GroupedBackwardWeightFp8<A, has_parts> grouped{
      begin.data(), mma::codes_of(dy.codes), mma::codes_of(x.codes), dy.scale, x.scale, of_dy, of_x, dw};
  launch(device, "gemm_grouped_backward_weight_fp8", grouped.blocks(), grouped);
}

#define NANOTRON_INSTANTIATE(A)                                                                                        \
  template void grouped_rows_fp8<A>(Device&, const Fp8Operand<A>&, const Fp8GroupWeights&, Vector<const std::int64_t>, \
                                    Matrix<bf16>);                                                                     \
  template void grouped_backward_weight_fp8<A>(Device&, const Fp8Operand<A>&, const Fp8Operand<e4m3>&, index_t,        \
                                               Vector<const std::int64_t>, const GroupMatrices<float>&);
NANOTRON_INSTANTIATE(e4m3)
NANOTRON_INSTANTIATE(e5m2)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::kernels
