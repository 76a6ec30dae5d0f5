#include "nanotron/kernels/elementwise/copy_matrix.hpp"

#include "nanotron/base/error.hpp"
#include "nanotron/kernels/loop/loop.hpp"

namespace nanotron::kernels {

template <class T>
void copy_matrix(Device& device, MatrixRef<const T> from, MatrixRef<T> to) {
  NANOTRON_REQUIRE(from.rows == to.rows && from.columns == to.columns,
                   "copy_matrix: {} x {} into {} x {}", from.rows, from.columns, to.rows, to.columns);
  const Region region(device.timers(), "copy_matrix");
  for_each_row(device, "copy_matrix", from.rows, KOKKOS_LAMBDA(const Row& row, const index_t r) {
    const T* const source = from.data + r * from.leading;
    T* const target = to.data + r * to.leading;
    row.for_each(from.columns, [=](const index_t c) { target[c] = source[c]; });
  });
}

template void copy_matrix<double>(Device&, MatrixRef<const double>, MatrixRef<double>);
template void copy_matrix<float>(Device&, MatrixRef<const float>, MatrixRef<float>);
template void copy_matrix<bf16>(Device&, MatrixRef<const bf16>, MatrixRef<bf16>);

}  // namespace nanotron::kernels
