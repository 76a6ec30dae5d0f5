#include "nanotron/kernels/optim/update_scalars.hpp"

#include "nanotron/kernels/loop/loop.hpp"

namespace nanotron::kernels {
namespace {

template <class M>
NANOTRON_FUNCTION bool is_finite(M x) {
  return x - x == M(0);
}

}  // namespace

template <class M>
void update_scalars(Device& device, Vector<const ExactSum> losses, Vector<const ExactSum> squares,
                    const UpdateLimits& limits, Vector<UpdateScalars> scalars) {
  const KernelRegion kernel(device, "update_scalars", reads(losses, squares), writes(scalars));
  const ExactSum *const loss = losses.data(), *const square = squares.data();
  UpdateScalars* const to = scalars.data();
  for_each_element(
      device, "update_scalars", 1, KOKKOS_LAMBDA(const index_t) {
        UpdateScalars s;
        s.loss = value(*loss) / limits.targets;
        s.norm = std::sqrt(value(*square));
        s.gradient_scale = clip_factor(s.norm, limits.max_norm);
        s.updates =
            is_finite(s.loss) && is_finite(static_cast<M>(s.gradient_scale * s.norm * s.gradient_scale * s.norm));
        *to = s;
      });
}

#define NANOTRON_INSTANTIATE(M)                                                                                 \
  template void update_scalars<M>(Device&, Vector<const ExactSum>, Vector<const ExactSum>, const UpdateLimits&, \
                                  Vector<UpdateScalars>);
NANOTRON_FOR_MASTER_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::kernels
