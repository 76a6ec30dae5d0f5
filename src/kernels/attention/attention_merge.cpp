#include "nanotron/kernels/attention/attention.hpp"

#include <cmath>

#include "nanotron/base/elementary/exponential.hpp"
#include "nanotron/base/elementary/logarithm.hpp"
#include "nanotron/base/error.hpp"
#include "nanotron/kernels/loop/loop.hpp"

namespace nanotron::kernels {

template <class T>
void merge_attention(Device& device, const AttentionShape& shape, MatrixRef<const T> part,
                     Vector<const master_t<T>> part_lse, MatrixRef<master_t<T>> sum, Vector<master_t<T>> lse) {
  using M = master_t<T>;
  const KernelRegion kernel(device, "merge_attention", reads(part, part_lse, sum, lse), writes(sum, lse));
  const AttentionShape s = shape;
  for_each_row(
      device, "merge_attention", s.batch * s.query_heads * s.query_length,
      KOKKOS_LAMBDA(const Row& row, const index_t at) {
        const index_t n = at / s.query_length, i = at % s.query_length;
        const index_t sequence = n / s.query_heads, column = n % s.query_heads * s.head_dim;
        const index_t stat = n * s.query_row_stride() + i;
        const index_t token = sequence * s.query_row_stride() + i;
        const M old_lse = lse.data()[stat], new_lse = part_lse.data()[stat];
        const M top = old_lse < new_lse ? new_lse : old_lse;
        const M old_weight = exponential(old_lse - top), new_weight = exponential(new_lse - top);
        const M total = old_weight + new_weight;
        const T* const from = part.data + token * part.leading + column;
        M* const to = sum.data + token * sum.leading + column;
        row.barrier();
        row.for_each(s.head_dim, [=](const index_t c) {
          to[c] = (old_weight * to[c] + new_weight * static_cast<M>(from[c])) / total;
        });
        lse.data()[stat] = top + logarithm(total);
      });
}

template <class T>
void accumulate_matrix(Device& device, MatrixRef<const T> x, MatrixRef<master_t<T>> y) {
  using M = master_t<T>;
  NANOTRON_REQUIRE(x.rows == y.rows && x.columns == y.columns, "accumulate_matrix: {} x {} onto {} x {}", x.rows,
                   x.columns, y.rows, y.columns);
  const KernelRegion kernel(device, "accumulate_matrix", reads(x, y), writes(y));
  for_each_row(
      device, "accumulate_matrix", x.rows, KOKKOS_LAMBDA(const Row& row, const index_t r) {
        const T* const from = x.data + r * x.leading;
        M* const to = y.data + r * y.leading;
        row.for_each(x.columns, [=](const index_t c) { to[c] += static_cast<M>(from[c]); });
      });
}

template <class T>
void round_matrix(Device& device, MatrixRef<const master_t<T>> x, MatrixRef<T> y) {
  using M = master_t<T>;
  NANOTRON_REQUIRE(x.rows == y.rows && x.columns == y.columns, "round_matrix: {} x {} into {} x {}", x.rows, x.columns,
                   y.rows, y.columns);
  const KernelRegion kernel(device, "round_matrix", reads(x), writes(y));
  for_each_row(
      device, "round_matrix", x.rows, KOKKOS_LAMBDA(const Row& row, const index_t r) {
        const M* const from = x.data + r * x.leading;
        T* const to = y.data + r * y.leading;
        row.for_each(x.columns, [=](const index_t c) { to[c] = static_cast<T>(from[c]); });
      });
}

#define NANOTRON_INSTANTIATE(T)                                                                                   \
  template void merge_attention<T>(Device&, const AttentionShape&, MatrixRef<const T>, Vector<const master_t<T>>, \
                                   MatrixRef<master_t<T>>, Vector<master_t<T>>);                                  \
  template void accumulate_matrix<T>(Device&, MatrixRef<const T>, MatrixRef<master_t<T>>);                        \
  template void round_matrix<T>(Device&, MatrixRef<const master_t<T>>, MatrixRef<T>);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::kernels
