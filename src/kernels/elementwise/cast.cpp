#include "nanotron/kernels/elementwise/cast.hpp"

#include "nanotron/base/error.hpp"
#include "nanotron/kernels/loop/loop.hpp"

namespace nanotron::kernels {
namespace {

// double -> float -> bf16 with two roundings to nearest can end on the wrong side. Rounding to odd first prevents it.
NANOTRON_FUNCTION inline float round_to_odd(double x) {
  const float nearest = static_cast<float>(x);
  std::uint32_t bits;
  std::memcpy(&bits, &nearest, sizeof bits);
  const double back = static_cast<double>(nearest);
  const bool inexact = back != x && x == x;
  const bool away = (back > x) == (x > 0.0);  // magnitude was rounded up
  const std::uint32_t truncated = bits - ((inexact && away) ? 1u : 0u);
  const std::uint32_t odd = truncated | (inexact ? 1u : 0u);
  float result;
  std::memcpy(&result, &odd, sizeof result);
  return result;
}

template <class B, class A>
NANOTRON_FUNCTION B converted(const A& x) {
  if constexpr (std::is_same_v<A, double> && std::is_same_v<B, bf16>) {
    return bf16(round_to_odd(x));
  } else if constexpr (std::is_same_v<B, bf16> || std::is_same_v<A, bf16>) {
    return static_cast<B>(static_cast<float>(x));
  } else {
    return static_cast<B>(x);
  }
}

}  // namespace

template <class A, class B>
void cast(Device& device, Vector<const A> x, Vector<B> y) {
  const KernelRegion kernel(device, "cast", reads(x), writes(y));
  NANOTRON_REQUIRE(x.extent(0) == y.extent(0), "cast: {} elements into {}", x.extent(0), y.extent(0));
  const A* const from = x.data();
  B* const to = y.data();
  for_each_element(
      device, "cast", static_cast<index_t>(x.extent(0)),
      KOKKOS_LAMBDA(const index_t i) { to[i] = converted<B>(from[i]); });
}

#define NANOTRON_INSTANTIATE(A)                                            \
  template void cast<A, double>(Device&, Vector<const A>, Vector<double>); \
  template void cast<A, float>(Device&, Vector<const A>, Vector<float>);   \
  template void cast<A, bf16>(Device&, Vector<const A>, Vector<bf16>);
NANOTRON_FOR_COMPUTE_TYPES(NANOTRON_INSTANTIATE)
#undef NANOTRON_INSTANTIATE

}  // namespace nanotron::kernels
