#include "nanotron/kernels/optim/update_scalars.hpp"

#include <cstring>

#include "nanotron/kernels/loop/loop.hpp"

namespace nanotron::kernels {
namespace {

template <class M>
NANOTRON_FUNCTION bool is_finite(M x) {
  return x - x == M(0);
}

NANOTRON_FUNCTION std::int64_t bits_of(double x) {
  std::int64_t bits = 0;
  memcpy(&bits, &x, sizeof bits);
  return bits;
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
        s.updates = is_finite(s.loss) &&
                    is_finite(static_cast<M>(s.gradient_scale * s.norm * s.gradient_scale * s.norm)) &&
                    s.norm <= limits.bad_norm;
        *to = s;
      });
}

void write_compared(Device& device, Vector<const UpdateScalars> scalars, Vector<std::int64_t> compared) {
  const KernelRegion kernel(device, "write_compared", reads(scalars), writes(compared));
  const UpdateScalars* const from = scalars.data();
  std::int64_t* const to = compared.data();
  for_each_element(
      device, "write_compared", 1, KOKKOS_LAMBDA(const index_t) {
        to[0] = bits_of(from->loss), to[1] = ~to[0];
        to[2] = bits_of(from->norm), to[3] = ~to[2];
      });
}

void require_agreement(Device& device, Vector<const std::int64_t> compared, Vector<UpdateScalars> scalars) {
  const KernelRegion kernel(device, "require_agreement", reads(compared), writes(scalars));
  const std::int64_t* const largest = compared.data();
  UpdateScalars* const to = scalars.data();
  for_each_element(
      device, "require_agreement", 1, KOKKOS_LAMBDA(const index_t) {
        to->agrees = largest[0] == ~largest[1] && largest[2] == ~largest[3];
        to->updates = to->updates && to->agrees;
      });
}

#define NANOTRON_INSTANTIATE(M)                                                                                 \
  template void update_scalars<M>(Device&, Vector<const ExactSum>, Vector<const ExactSum>, const UpdateLimits&, \
                                  Vector<UpdateScalars>);
NANOTRON_FOR_MASTER_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::kernels
