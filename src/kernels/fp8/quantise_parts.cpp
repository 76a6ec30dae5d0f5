#include <cmath>

#include "kernels/fp8/parts.hpp"
#include "nanotron/base/error.hpp"

namespace nanotron::kernels {
namespace {

template <class E>
bool fits(const Matrix<E>& codes, index_t rows, index_t k) {
  return codes.extent(0) == 0 ||
         (static_cast<index_t>(codes.extent(0)) == rows && static_cast<index_t>(codes.extent(1)) == fp8_padded(k));
}

}  // namespace

void quantise_parts(Device& device, Matrix<const bf16> x, const Fp8Matrix<e4m3>& y) {
  const auto rows = static_cast<index_t>(x.extent(0)), columns = static_cast<index_t>(x.extent(1));
  NANOTRON_REQUIRE(y.scaling != Fp8Scaling::tensor && fits(y.rows, rows, columns) && fits(y.columns, columns, rows),
                   "quantise_parts: {} x {} into {} x {} and {} x {}", rows, columns, y.rows.extent(0),
                   y.rows.extent(1), y.columns.extent(0), y.columns.extent(1));
  const KernelRegion kernel(device, "quantise_parts", reads(x), writes(y.rows, y.columns));
  for_each_part(device, "quantise_parts",
                {.from = x.data(), .rows = rows, .columns = columns, .row_tiles = fp8_blocks(rows)},
                PartsOfCodes<e4m3>(y, rows, columns, fp8_padded(rows)));
}

}  // namespace nanotron::kernels
