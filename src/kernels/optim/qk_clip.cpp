#include "nanotron/kernels/optim/qk_clip.hpp"

#include <cmath>

#include "nanotron/base/error.hpp"
#include "nanotron/base/types.hpp"
#include "nanotron/kernels/loop/loop.hpp"
#include "nanotron/kernels/optim/update_operands.hpp"

namespace nanotron::kernels {
namespace {

NANOTRON_FUNCTION double factor_of(const HeadRows& heads, double gamma, index_t row_of_head) {
  if (row_of_head < heads.balanced) return std::sqrt(gamma);
  return heads.rest == HeadRows::Rest::gamma ? gamma : 1.0;
}

template <class M, class Store>
void run_clip(Device& device, Vector<M> p, index_t first, const HeadRows& heads, Vector<const double> gamma,
              Vector<const UpdateScalars> scalars, const Store& copy) {
  M* const parameter = p.data();
  const double* const factors = gamma.data();
  const UpdateScalars* const decided = scalars.data();
  for_each_piece<M>(
      device, "qk_clip", static_cast<index_t>(p.extent(0)),
      KOKKOS_LAMBDA(const Row& row, const index_t begin, const index_t count) {
        if (!decided->updates) return;
        const Store stored = copy;
        row.for_each(count, [=](const index_t n) {
          const index_t i = begin + n, at = (first + i) / heads.columns;
          const double of_head = factors[at / heads.rows / heads.heads_per_gamma];
          const double factor = factor_of(heads, of_head, at % heads.rows);
          if (factor == 1.0) return;
          const M clipped = static_cast<M>(factor) * parameter[i];
          parameter[i] = clipped;
          stored(i, Width<1>{}, Chunk<M, 1>{clipped});
        });
      });
}

}  // namespace

void clip_factors(Device& device, double tau, Matrix<const double> maxima, Matrix<double> gamma) {
  const KernelRegion kernel(device, "qk_clip_factors", reads(maxima), writes(gamma));
  const auto heads = static_cast<index_t>(maxima.extent(1)), keys = static_cast<index_t>(gamma.extent(1));
  NANOTRON_REQUIRE(maxima.extent(0) == gamma.extent(0) && keys > 0 && heads % keys == 0,
                   "QK-clip: {} x {} maxima, {} x {} factors", maxima.extent(0), heads, gamma.extent(0), keys);
  const double* const largest = maxima.data();
  double* const factors = gamma.data();
  const index_t group = heads / keys;
  for_each_element(
      device, "qk_clip_factors", elements_of(gamma), KOKKOS_LAMBDA(const index_t i) {
        double top = largest[i * group];
        for (index_t h = 1; h < group; ++h) top = top < largest[i * group + h] ? largest[i * group + h] : top;
        factors[i] = top > tau ? tau / top : 1.0;
      });
}

template <class M>
void clip_rows(Device& device, Vector<M> p, index_t first, const HeadRows& heads, Vector<const double> gamma,
               Vector<const UpdateScalars> scalars, Vector<bf16> copy) {
  const KernelRegion kernel(device, "qk_clip", reads(p, gamma), writes(p, copy));
  with_copy(copy, p.extent(0), [&](const auto& store) { run_clip<M>(device, p, first, heads, gamma, scalars, store); });
}

#define NANOTRON_INSTANTIATE(M)                                                                  \
  template void clip_rows<M>(Device&, Vector<M>, index_t, const HeadRows&, Vector<const double>, \
                             Vector<const UpdateScalars>, Vector<bf16>);
NANOTRON_FOR_MASTER_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::kernels
