// ranks: 1
// Scales and codes of parts of a matrix, in both layouts, bit by bit against plain loops.

#include "nanotron/kernels/fp8/blocks.hpp"
#include "support/reference/fp8.hpp"
#include "unit/kernels/kernel_test.hpp"

namespace nanotron::test {
namespace {

using kernels::Fp8Matrix, kernels::Fp8ScaleLayout, kernels::Fp8Scaling, kernels::fp8_block, kernels::fp8_padded;

template <class T>
struct Memory {
  explicit Memory(index_t n) : view("codes", static_cast<std::size_t>(n)) {}
  std::vector<T> pull() const { return values_of(view); }
  Kokkos::View<T*, Kokkos::LayoutRight, MemorySpace> view;
};

class QuantiseParts : public testing::TestWithParam<Fp8Scaling> {
 protected:
  struct Result {
    std::vector<e4m3> rows, columns;
    std::vector<float> row_scales, column_scales;
    std::vector<bf16> values, values_of_columns;
  };
  Result of(Array<bf16>& x, index_t rows, index_t columns) {
    x.push();
    const Fp8Scaling scaling = GetParam();
    const index_t wide = fp8_padded(columns), high = fp8_padded(rows);
    const Memory<e4m3> by_rows(rows * wide), by_columns(columns * high);
    const Memory<float> of_rows(Fp8ScaleLayout(scaling, rows, columns).count),
        of_columns(Fp8ScaleLayout(scaling, columns, rows).count);
    Array<bf16> back(rows * columns), back_of_columns(rows * columns);
    const Fp8Matrix<e4m3> y{Matrix<e4m3>(by_rows.view.data(), rows, wide),
                            Matrix<e4m3>(by_columns.view.data(), columns, high), of_rows.view.data(),
                            of_columns.view.data(), scaling};
    kernels::quantise_parts(device_, x.read(rows, columns), y);
    kernels::dequantise<e4m3>(device_, y.by_rows(), back.matrix(rows, columns));
    kernels::dequantise<e4m3>(device_, y.by_columns(), back_of_columns.matrix(columns, rows));
    back.pull(), back_of_columns.pull();
    return {by_rows.pull(), by_columns.pull(), of_rows.pull(), of_columns.pull(), back.host, back_of_columns.host};
  }

  void expect_reference(Array<bf16>& x, index_t rows, index_t columns) {
    const Fp8Scaling scaling = GetParam();
    const Result y = of(x, rows, columns);
    const index_t side = scaling == Fp8Scaling::blocks ? fp8_block : 1;
    const index_t wide = fp8_padded(columns), high = fp8_padded(rows);
    const auto row_scales = kernels::reference::scales_of_parts(x.host.data(), rows, columns, side, fp8_block);
    const auto column_scales = kernels::reference::scales_of_parts(x.host.data(), rows, columns, fp8_block, side);
    const Fp8ScaleLayout of_rows(scaling, rows, columns), of_columns(scaling, columns, rows);
    for (index_t r = 0; r < high; ++r) {
      for (index_t c = 0; c < wide; ++c) {
        const bool inside = r < rows && c < columns;
        if (!inside) {
          if (r < rows) {
            ASSERT_EQ(y.rows[r * wide + c].bits, 0);
          }
          if (c < columns) {
            ASSERT_EQ(y.columns[c * high + r].bits, 0);
          }
          continue;
        }
        const auto value = static_cast<double>(x.host[r * columns + c]);
        const double by_row = row_scales[r * columns + c], by_column = column_scales[r * columns + c];
        ASSERT_EQ(y.row_scales[of_rows(r, c / fp8_block)], by_row) << r << " " << c;
        ASSERT_EQ(y.column_scales[of_columns(c, r / fp8_block)], by_column) << r << " " << c;
        const std::uint8_t in_row = kernels::reference::nearest_code<e4m3>(value / by_row);
        const std::uint8_t in_column = kernels::reference::nearest_code<e4m3>(value / by_column);
        ASSERT_EQ(y.rows[r * wide + c].bits, in_row) << r << " " << c;
        ASSERT_EQ(y.columns[c * high + r].bits, in_column) << r << " " << c;
        ASSERT_EQ(static_cast<double>(y.values[r * columns + c]), float(e4m3::from_bits(in_row)) * by_row);
        ASSERT_EQ(static_cast<double>(y.values_of_columns[c * rows + r]),
                  float(e4m3::from_bits(in_column)) * by_column);
      }
    }
  }

  Timers timers_;
  Device device_{timers_};
};

TEST_P(QuantiseParts, EqualTheReferenceBitByBitInBothLayouts) {
  for (const auto& [rows, columns] : {std::pair<index_t, index_t>{1, 1}, {3, 70}, {128, 128}, {130, 17}, {129, 260}}) {
    for (const double spread : {1e-20, 1.0, 7e4}) {
      Array<bf16> x = Array<bf16>::random(rows * columns, static_cast<unsigned>(rows + columns), spread);
      // Rows and columns of different sizes, subnormal codes, and one row of zeros.
      for (index_t i = 0; i < x.size(); i += 3) x.host[i] = bf16(x.host[i] * 1e-3f);
      for (index_t c = 0; c < columns; ++c) x.host[c] = bf16(0.0f);
      for (index_t r = rows / 2; r < rows; ++r) x.host[r * columns] = bf16(x.host[r * columns] * 37.0f);
      expect_reference(x, rows, columns);
    }
  }
}

TEST_P(QuantiseParts, WhatIsNotFiniteStaysSoAndStaysInItsPart) {
  Array<bf16> x(300 * 4, 3.0);
  x.host[4] = bf16(NAN);
  const Result y = of(x, 300, 4);
  EXPECT_FALSE(std::isfinite(static_cast<float>(y.values[4])));
  for (index_t i = 0; i < x.size(); ++i) {
    if (i == 4) continue;
    ASSERT_EQ(static_cast<float>(y.values[i]), 3.0f) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Scalings, QuantiseParts, testing::Values(Fp8Scaling::tiles, Fp8Scaling::blocks));

}  // namespace
}  // namespace nanotron::test
