#include "nanotron/kernels/optim/weight_average.hpp"

#include "nanotron/base/error.hpp"
#include "nanotron/kernels/loop/chunk.hpp"
#include "nanotron/kernels/loop/loop.hpp"

namespace nanotron::kernels {

template <class M>
void weight_average(Device& device, Vector<M> average, Vector<const M> p, double decay,
                    Vector<const UpdateScalars> scalars) {
  const KernelRegion kernel(device, "weight average", reads(average, p), writes(average));
  NANOTRON_REQUIRE(average.extent(0) == p.extent(0), "weight average: {} values, {} parameters", average.extent(0),
                   p.extent(0));
  const M share = static_cast<M>(1.0 - decay);
  M* const mean = average.data();
  const M* const parameter = p.data();
  const UpdateScalars* const decided = scalars.data();
  for_each_piece<M>(
      device, "weight average", static_cast<index_t>(p.extent(0)),
      KOKKOS_LAMBDA(const Row& row, const index_t begin, const index_t count) {
        if (!decided->updates) return;
        row.template for_each_chunk<M>(count, [=](const index_t at, const auto n) {
          const index_t i = begin + at;
          const auto x = load(parameter + i, n), m = load(mean + i, n);
          store(mean + i, n, [&](const int k) { return m[k] + share * (x[k] - m[k]); });
        });
      });
}

#define NANOTRON_INSTANTIATE(M) \
  template void weight_average<M>(Device&, Vector<M>, Vector<const M>, double, Vector<const UpdateScalars>);
NANOTRON_FOR_MASTER_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::kernels
