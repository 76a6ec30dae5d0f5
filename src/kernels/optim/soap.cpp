#include "nanotron/kernels/optim/soap.hpp"

#include "nanotron/base/error.hpp"
#include "nanotron/base/types.hpp"
#include "nanotron/kernels/elementwise/elementwise.hpp"
#include "nanotron/kernels/loop/loop.hpp"
#include "nanotron/tensor/kernel_region.hpp"

namespace nanotron::kernels {

template <class M>
void scale_gradient(Device& device, Vector<M> g, Vector<const UpdateScalars> scalars, Vector<UpdateScalars> scaled) {
  const KernelRegion kernel(device, "scale gradient", reads(g), writes(g));
  M* const gradient = g.data();
  const UpdateScalars* const decided = scalars.data();
  UpdateScalars* const after = scaled.data();
  for_each_piece<M>(
      device, "scale gradient", static_cast<index_t>(g.extent(0)),
      KOKKOS_LAMBDA(const Row& row, const index_t begin, const index_t count) {
        const M scale = static_cast<M>(decided->gradient_scale);
        row.for_each(count, [=](const index_t i) { gradient[begin + i] *= scale; });
      });
  for_each_element(
      device, "scaled", 1, KOKKOS_LAMBDA(const index_t) {
        *after = *decided;
        after->gradient_scale = 1.0;
      });
}

template <class S>
void permute(Device& device, Matrix<S> x, Lines lines, Vector<const std::int32_t> order, Vector<S> workspace) {
  const KernelRegion kernel(device, "permute", reads(x, x), writes(x, x));
  const auto rows = static_cast<index_t>(x.extent(0)), columns = static_cast<index_t>(x.extent(1));
  NANOTRON_REQUIRE(static_cast<index_t>(order.extent(0)) == (lines == Lines::rows ? rows : columns) &&
                       static_cast<index_t>(workspace.extent(0)) >= rows * columns,
                   "permute: {} numbers, a workspace of {} for ({}, {})", order.extent(0), workspace.extent(0), rows,
                   columns);
  const Vector<S> copied(workspace.data(), rows * columns), all(x.data(), rows * columns);
  copy<S>(device, all, copied);
  const S* const from = copied.data();
  S* const to = x.data();
  const std::int32_t* const number = order.data();
  const bool by_rows = lines == Lines::rows;
  for_each_row(
      device, "permute", rows, KOKKOS_LAMBDA(const Row& row, const index_t i) {
        row.for_each(columns, [=](const index_t j) {
          to[i * columns + j] = by_rows ? from[number[i] * columns + j] : from[i * columns + number[j]];
        });
      });
}

#define NANOTRON_INSTANTIATE(M) \
  template void scale_gradient<M>(Device&, Vector<M>, Vector<const UpdateScalars>, Vector<UpdateScalars>);
NANOTRON_FOR_MASTER_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE
#define NANOTRON_INSTANTIATE(S) \
  template void permute<S>(Device&, Matrix<S>, Lines, Vector<const std::int32_t>, Vector<S>);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::kernels
