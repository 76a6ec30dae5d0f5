#include "nanotron/kernels/fp8/groups.hpp"

#include "kernels/fp8/parts.hpp"
#include "nanotron/base/error.hpp"
#include "nanotron/kernels/elementwise/elementwise.hpp"

namespace nanotron::kernels {
namespace {

// scales(g) from the maxima of the rows of group g.
template <class E>
void choose_scales(Device& device, const Vector<float>& maxima, const Vector<const std::int64_t>& begin,
                   float* scales) {
  const auto groups = static_cast<index_t>(begin.extent(0)) - 1;
  const KernelRegion kernel(device, "fp8_scale", reads(maxima), {static_cast<double>(groups) * sizeof(float)});
  const float* const from = maxima.data();
  const std::int64_t* const at = begin.data();
  for_each_row(
      device, "fp8_scales_of_groups", groups, KOKKOS_LAMBDA(const Row& row, const index_t g) {
        const index_t first = at[g];
        const float amax =
            row.template max<float>(at[g + 1] - first, 0.0f, [=](const index_t i) { return from[first + i]; });
        scales[g] = ldexpf(1.0f, -exponent_for<E>(amax));
      });
}

template <class E>
void require_shapes(index_t rows, index_t columns, index_t groups, const Fp8Matrix<E>& y) {
  const auto fits = [](const Matrix<E>& codes, index_t high, index_t wide) {
    return codes.extent(0) == 0 ||
           (static_cast<index_t>(codes.extent(0)) == high && static_cast<index_t>(codes.extent(1)) == wide);
  };
  NANOTRON_REQUIRE(fits(y.rows, rows, fp8_padded(columns)) &&
                       fits(y.columns, columns, fp8_group_tiles(rows, groups) * fp8_block) &&
                       y.scaling != Fp8Scaling::blocks,
                   "quantise_groups: {} x {} of {} groups into {} x {} and {} x {}", rows, columns, groups,
                   y.rows.extent(0), y.rows.extent(1), y.columns.extent(0), y.columns.extent(1));
}

}  // namespace

template <class E>
void quantise_groups(Device& device, Matrix<const bf16> x, Vector<const std::int64_t> begin, Vector<float> maxima,
                     const Fp8Matrix<E>& y) {
  const auto rows = static_cast<index_t>(x.extent(0)), columns = static_cast<index_t>(x.extent(1));
  const index_t groups = static_cast<index_t>(begin.extent(0)) - 1, tiles = fp8_group_tiles(rows, groups);
  require_shapes(rows, columns, groups, y);
  if (y.scaling == Fp8Scaling::tensor) {
    const Vector<float> of_rows(maxima.data(), rows);
    row_maxima<bf16>(device, x, of_rows);
    choose_scales<E>(device, of_rows, begin, y.scale);
  }
  const KernelRegion kernel(device, "quantise_groups", reads(x), writes(y.rows, y.columns));
  for_each_part(
      device, "quantise_groups",
      {.from = x.data(), .rows = rows, .columns = columns, .row_tiles = tiles, .begin = begin.data(), .groups = groups},
      PartsOfCodes<E>(y, rows, columns, tiles * fp8_block));
}

#define NANOTRON_INSTANTIATE(E)                                                                            \
  template void quantise_groups<E>(Device&, Matrix<const bf16>, Vector<const std::int64_t>, Vector<float>, \
                                   const Fp8Matrix<E>&);
NANOTRON_INSTANTIATE(e4m3)
NANOTRON_INSTANTIATE(e5m2)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::kernels
