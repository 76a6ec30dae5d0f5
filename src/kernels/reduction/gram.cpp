#include "nanotron/kernels/reduction/gram.hpp"

#include "nanotron/base/error.hpp"
#include "nanotron/kernels/loop/loop.hpp"

namespace nanotron::kernels {

template <class M>
void gram(Device& device, MatrixRef<const M> x, Vector<double> gram) {
  const KernelRegion kernel(device, "gram", reads(x), writes(gram));
  const index_t pairs = gram_pairs(x.rows);
  NANOTRON_REQUIRE(static_cast<index_t>(gram.extent(0)) == pairs, "{} rows with {} dot products", x.rows,
                   gram.extent(0));
  double* const out = gram.data();
  for_each_row(
      device, "gram", pairs, KOKKOS_LAMBDA(const Row& row, const index_t pair) {
        index_t j = 0;
        while (gram_pairs(j + 1) <= pair) ++j;
        const M* const a = x.data + (pair - gram_pairs(j)) * x.leading;
        const M* const b = x.data + j * x.leading;
        out[pair] = row.template sum<double>(
            x.columns, [=](const index_t c) { return static_cast<double>(a[c]) * static_cast<double>(b[c]); });
      });
}

template <class M>
void combine_rows(Device& device, MatrixRef<const M> x, Vector<const double> coefficients, Vector<M> y) {
  const KernelRegion kernel(device, "combine_rows", reads(x, coefficients), writes(y));
  NANOTRON_REQUIRE(
      static_cast<index_t>(coefficients.extent(0)) == x.rows && static_cast<index_t>(y.extent(0)) == x.columns,
      "{} coefficients, {} results of {} x {}", coefficients.extent(0), y.extent(0), x.rows, x.columns);
  const double* const factor = coefficients.data();
  M* const out = y.data();
  for_each_element(
      device, "combine_rows", x.columns, KOKKOS_LAMBDA(const index_t c) {
        double sum = 0.0;
        for (index_t r = 0; r < x.rows; ++r) sum += factor[r] * static_cast<double>(x.data[r * x.leading + c]);
        out[c] = static_cast<M>(sum);
      });
}

#define NANOTRON_INSTANTIATE(M)                                       \
  template void gram<M>(Device&, MatrixRef<const M>, Vector<double>); \
  template void combine_rows<M>(Device&, MatrixRef<const M>, Vector<const double>, Vector<M>);
NANOTRON_FOR_MASTER_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::kernels
