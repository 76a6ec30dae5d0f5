#include "nanotron/kernels/fp8/quantise.hpp"

#include "kernels/fp8/codes.hpp"
#include "nanotron/base/error.hpp"
#include "nanotron/kernels/fp8/blocks.hpp"

namespace nanotron::kernels {
namespace {

template <class E>
void require_shape(const Matrix<const bf16>& x, const Fp8Matrix<E>& y) {
  const auto rows = static_cast<index_t>(x.extent(0)), columns = static_cast<index_t>(x.extent(1));
  const auto fits = [](const Matrix<E>& m, index_t r, index_t c) {
    return m.extent(0) == 0 ||
           (static_cast<index_t>(m.extent(0)) == r && static_cast<index_t>(m.extent(1)) == fp8_padded(c));
  };
  NANOTRON_REQUIRE(fits(y.rows, rows, columns) && fits(y.columns, columns, rows),
                   "quantise: {} x {} into {} x {} and {} x {}", rows, columns, y.rows.extent(0), y.rows.extent(1),
                   y.columns.extent(0), y.columns.extent(1));
}

}  // namespace

template <class E>
void choose_scale(Device& device, Vector<const float> maxima, float* scale) {
  const KernelRegion kernel(device, "fp8_scale", reads(maxima), {sizeof(float)});
  const float* const from = maxima.data();
  const auto n = static_cast<index_t>(maxima.extent(0));
  for_each_row(
      device, "fp8_scale", 1, KOKKOS_LAMBDA(const Row& row, const index_t) {
        const float amax = row.template max<float>(n, 0.0f, [=](const index_t i) { return from[i]; });
        *scale = ldexpf(1.0f, -exponent_for<E>(amax));
      });
}

// Tile by tile: codes in words along the rows, and through fast memory along the columns.
template <class E>
void quantise(Device& device, Matrix<const bf16> x, Vector<const float> maxima, const Fp8Matrix<E>& y) {
  require_shape(x, y);
  NANOTRON_REQUIRE(y.scaling == Fp8Scaling::tensor, "one scale of a matrix with several");
  choose_scale<E>(device, maxima, y.scale);
  const KernelRegion kernel(device, "quantise", reads(x), writes(y.rows, y.columns));
  const auto rows = static_cast<index_t>(x.extent(0)), columns = static_cast<index_t>(x.extent(1));
  const bf16* const from = x.data();
  const float* const scale = y.scale;
  const TileOfCodes<E> to = tile_of_codes(y, rows, columns);
  const TileGrid grid(to.padded_rows, to.padded_columns);
  for_each_tile(
      device, "quantise", grid, 1, KOKKOS_LAMBDA(const Row& row, std::uint8_t* const bytes, const index_t tile) {
        const index_t row0 = grid.first_row(tile), column0 = grid.first_column(tile);
        const float factor = 1.0f / *scale;
        row.for_each(tile_width * tile_width / fp8_word, [=](const index_t i) {
          const index_t r = row0 + i / (tile_width / fp8_word), c = column0 + i % (tile_width / fp8_word) * fp8_word;
          alignas(fp8_word) std::uint8_t codes[fp8_word];
          for (index_t j = 0; j < fp8_word; ++j) {
            const bool inside = r < to.rows && c + j < to.columns;
            codes[j] = inside ? E::code_of(static_cast<float>(from[r * to.columns + c + j]) * factor) : std::uint8_t{0};
          }
          to.put(bytes, row0, column0, r, c, codes);
        });
        to.transpose(row, bytes, row0, column0);
      });
}

template <class E>
void dequantise(Device& device, const Fp8Operand<E>& x, Matrix<bf16> y) {
  const KernelRegion kernel(device, "dequantise", reads(x.codes), writes(y));
  NANOTRON_REQUIRE(x.codes.extent(0) == y.extent(0) && x.codes.extent(1) >= y.extent(1),
                   "dequantise: {} x {} of {} x {}", y.extent(0), y.extent(1), x.codes.extent(0), x.codes.extent(1));
  const E* const from = x.codes.data();
  bf16* const to = y.data();
  const float* const scales = x.scale;
  const auto leading = static_cast<index_t>(x.codes.extent(1)), columns = static_cast<index_t>(y.extent(1));
  const Fp8ScaleLayout layout(x.scaling, static_cast<index_t>(x.codes.extent(0)), leading);
  for_each_row(
      device, "dequantise", static_cast<index_t>(y.extent(0)), KOKKOS_LAMBDA(const Row& row, const index_t r) {
        const E* const source = from + r * leading;
        bf16* const target = to + r * columns;
        const Fp8ScaleLayout place = layout;
        row.for_each(columns, [=](const index_t c) {
          target[c] = bf16(static_cast<float>(source[c]) * scales[place(r, c / fp8_block)]);
        });
      });
}

#define NANOTRON_INSTANTIATE(E)                                                                     \
  template void choose_scale<E>(Device&, Vector<const float>, float*);                              \
  template void quantise<E>(Device&, Matrix<const bf16>, Vector<const float>, const Fp8Matrix<E>&); \
  template void dequantise<E>(Device&, const Fp8Operand<E>&, Matrix<bf16>);
NANOTRON_INSTANTIATE(e4m3)
NANOTRON_INSTANTIATE(e5m2)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::kernels
