#include "nanotron/kernels/elementwise/copy_matrix.hpp"

#include "nanotron/base/error.hpp"
#include "nanotron/kernels/loop/loop.hpp"

namespace nanotron::kernels {

template <class T>
void copy_matrix(Device& device, MatrixRef<const T> from, MatrixRef<T> to) {
  NANOTRON_REQUIRE(from.rows == to.rows && from.columns == to.columns, "copy_matrix: {} x {} into {} x {}", from.rows,
                   from.columns, to.rows, to.columns);
  const KernelRegion kernel(device, "copy_matrix", reads(from), writes(to));
  for_each_row(
      device, "copy_matrix", from.rows, KOKKOS_LAMBDA(const Row& row, const index_t r) {
        const T* const source = from.data + r * from.leading;
        T* const target = to.data + r * to.leading;
        row.for_each(from.columns, [=](const index_t c) { target[c] = source[c]; });
      });
}

template <class T>
void copy(Device& device, Vector<const T> from, Vector<T> to) {
  const KernelRegion kernel(device, "copy", reads(from), writes(to));
  if (device.is_planning()) return device.launch_planned();
  if (from.extent(0) > 0) Kokkos::deep_copy(device.exec(), to, from);
}

#define NANOTRON_INSTANTIATE(M) template void copy<M>(Device&, Vector<const M>, Vector<M>);
NANOTRON_FOR_MASTER_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE
template void copy<std::int32_t>(Device&, Vector<const std::int32_t>, Vector<std::int32_t>);
template void copy<std::int64_t>(Device&, Vector<const std::int64_t>, Vector<std::int64_t>);
#define NANOTRON_INSTANTIATE(T) template void copy_matrix<T>(Device&, MatrixRef<const T>, MatrixRef<T>);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::kernels
