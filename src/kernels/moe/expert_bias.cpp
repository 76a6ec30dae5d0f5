#include "nanotron/kernels/moe/expert_bias.hpp"

#include "kernels/elementwise/row_sums.hpp"
#include "nanotron/base/types.hpp"
#include "nanotron/kernels/loop/loop.hpp"

namespace nanotron::kernels {

template <class T>
void add_weighted_bias(Device& device, Vector<const master_t<T>> weights, Vector<const master_t<T>> bias, Matrix<T> y) {
  const KernelRegion kernel(device, "add_weighted_bias", reads(weights, bias, y), writes(y));
  using M = master_t<T>;
  const auto columns = static_cast<index_t>(y.extent(1));
  for_each_row(
      device, "add_weighted_bias", static_cast<index_t>(y.extent(0)), KOKKOS_LAMBDA(const Row& row, const index_t r) {
        T* const to = y.data() + r * columns;
        const M w = weights.data()[r];
        const M* const b = bias.data();
        row.for_each(columns, [=](const index_t c) { to[c] = static_cast<T>(static_cast<M>(to[c]) + w * b[c]); });
      });
}

template <class T>
void add_bias_dots(Device& device, Matrix<const T> dy, Vector<const master_t<T>> bias, Vector<master_t<T>> dweights) {
  const KernelRegion kernel(device, "add_bias_dots", reads(dy, bias, dweights), writes(dweights));
  using M = master_t<T>;
  const auto columns = static_cast<index_t>(dy.extent(1));
  for_each_row(
      device, "add_bias_dots", static_cast<index_t>(dy.extent(0)), KOKKOS_LAMBDA(const Row& row, const index_t r) {
        const T* const from = dy.data() + r * columns;
        const M* const b = bias.data();
        const M dot = row.template sum<M>(columns, [=](const index_t c) { return static_cast<M>(from[c]) * b[c]; });
        row.for_each(1, [=](const index_t) { dweights.data()[r] += dot; });
      });
}

template <class T>
void scale_rows(Device& device, Matrix<const T> x, Vector<const master_t<T>> weights, Matrix<T> y) {
  const KernelRegion kernel(device, "scale_rows", reads(x, weights), writes(y));
  using M = master_t<T>;
  const auto columns = static_cast<index_t>(x.extent(1));
  for_each_row(
      device, "scale_rows", static_cast<index_t>(x.extent(0)), KOKKOS_LAMBDA(const Row& row, const index_t r) {
        const T* const from = x.data() + r * columns;
        T* const to = y.data() + r * columns;
        const M w = weights.data()[r];
        row.for_each(columns, [=](const index_t c) { to[c] = static_cast<T>(w * static_cast<M>(from[c])); });
      });
}

template <class T>
void cut_bias_backward(Device& device, Matrix<const T> dy, const std::int64_t* cuts, index_t segments,
                       Vector<master_t<T>> dbias, Vector<master_t<T>> workspace) {
  const MatrixRef<const T> y(dy);
  RowPieces pieces = pieces_of_bias(pieces_on(device), segments, y.rows);
  pieces.cuts = cuts;
  add_row_sums<T>(device, y, pieces, dbias, workspace);
}

#define NANOTRON_INSTANTIATE(T)                                                                                   \
  template void add_weighted_bias<T>(Device&, Vector<const master_t<T>>, Vector<const master_t<T>>, Matrix<T>);   \
  template void add_bias_dots<T>(Device&, Matrix<const T>, Vector<const master_t<T>>, Vector<master_t<T>>);       \
  template void scale_rows<T>(Device&, Matrix<const T>, Vector<const master_t<T>>, Matrix<T>);                    \
  template void cut_bias_backward<T>(Device&, Matrix<const T>, const std::int64_t*, index_t, Vector<master_t<T>>, \
                                     Vector<master_t<T>>);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::kernels
